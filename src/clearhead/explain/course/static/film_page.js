// Start script of film.html.

import { startTheme } from "clearhead/course_theme.js";
import { mountFilm } from "clearhead/film_view.js";

startTheme();
const element = document.getElementById("film");
const data = document.getElementById("film-data")?.textContent;
if (element && data) mountFilm(element, JSON.parse(data));
