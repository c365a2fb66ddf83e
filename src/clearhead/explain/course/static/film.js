// Widget with the film of a training run that comes with clearhead.

import { mountFilm } from "clearhead/film_view.js";

/** @param {HTMLElement} element @param {{ data: import("clearhead/film_data.js").Film }} options */
export const mount = (element, { data }) => mountFilm(element, data);
