// Film of a head: a strip of small maps, and a player that shows one of them at a time.

import { create, createButton, visibleToken } from "clearhead/elements.js";
import {
  accuracyOf,
  accuracySentence,
  firstView,
  headNames,
  linkedColumn,
  relationNames,
  sentenceOf,
  stackOf,
  viewOf,
  weightOf,
} from "clearhead/film_data.js";
import { createMap, createSmallMap } from "clearhead/film_map.js";
import { createHandle } from "clearhead/widget_parts.js";

/** @typedef {import("clearhead/film_data.js").Film} Film */
/** @typedef {import("clearhead/film_data.js").View} View */

const FRAME_MILLISECONDS = 450;
const SLOW_FRAME_MILLISECONDS = 1200; // for readers who prefer reduced motion

/** Show a film in an element. @param {HTMLElement} element @param {Film} film */
export function mountFilm(element, film) {
  /** @type {View} */
  let view = firstView(film);
  let index = 0;
  /** @type {number | undefined} */
  let timer;
  const handle = createHandle(() => ({ step: film.frames[index].step, weight: linkedWeight(film, view, index), head: view.head }));

  const relation = createList("Relation", relationNames(film), (name) => change(viewOf(film, name)));
  const head = createList("Head", headNames(film), (name) => change({ ...view, head: name, row: stackOf(name) === stackOf(view.head) ? view.row : 0 }));
  const row = createList("Token written", [], (_, position) => change({ ...view, row: position }));
  const play = createButton("Play", () => (timer === undefined ? start() : stop()), { class: "button film-play" });
  const slider = create("input", { type: "range", min: 0, max: film.frames.length - 1, step: 1, value: 0, "aria-label": "Frame" });
  const step = create("output", { class: "film-step" });
  const say = create("div", { class: "say film-say" });
  const picture = create("div", { class: "film-picture" });
  const strip = create("ol", { class: "film-strip", "aria-label": "Film strip" });
  /** @type {ReturnType<typeof createMap>} */
  let map;
  /** @type {HTMLButtonElement[]} */
  let frames = [];

  slider.addEventListener("input", () => {
    stop();
    go(Number(slider.value));
  });
  element.classList.add("film");
  element.addEventListener("keydown", (event) => {
    if (event.target !== element && !(/** @type {HTMLElement} */ (event.target).closest(".film-strip"))) return;
    const moved = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: film.frames.length - 1 }[event.key];
    if (moved === undefined) return;
    event.preventDefault();
    stop();
    go(moved);
    frames[index].focus();
  });
  element.append(
    create("p", { class: "film-text" }, create("bdi", {}, film.text), " → ", create("bdi", {}, film.translation)),
    create("div", { class: "controls" }, relation.element, head.element, row.element),
    create("div", { class: "controls" }, play, slider, step),
    create("div", { class: "film-stage" }, picture, say),
    strip,
  );

  /** Watch another head, relation or row. @param {View} next */
  function change(next) {
    view = next;
    relation.set(view.relation);
    head.set(view.head);
    const { rows, columns } = film.stacks[stackOf(view.head)];
    row.rename(stackOf(view.head) === "encoder" ? "Token" : "Token written"); // the encoder writes nothing
    row.fill(rows, view.row);
    map = createMap(rows, columns);
    picture.replaceChildren(map.element);
    frames = film.frames.map((frame, position) => createFrame(frame, position));
    strip.replaceChildren(...frames.map((frame) => create("li", {}, frame)));
    go(index);
  }

  /** @param {import("clearhead/film_data.js").Frame} frame @param {number} position */
  function createFrame(frame, position) {
    const accuracy = accuracyOf(film, frame, view.relation, view.head);
    const label = accuracy === undefined ? `step ${frame.step}` : `step ${frame.step}: finds the ${view.relation} word in ${(100 * accuracy).toFixed(0)} %`;
    const button = createButton("", () => {
      stop();
      go(position);
    }, { "aria-label": label, title: label });
    button.append(
      createSmallMap(frame.maps[view.head], view.row, linkedColumn(film, view)),
      create("span", {}, String(frame.step)),
      create("span", { class: "film-accuracy" }, accuracy === undefined ? "" : accuracy.toFixed(2)),
    );
    return button;
  }

  /** Show a frame. @param {number} position */
  function go(position) {
    frames[index]?.removeAttribute("aria-current");
    index = Math.max(0, Math.min(film.frames.length - 1, position));
    const frame = film.frames[index];
    frames[index].setAttribute("aria-current", "true");
    const entry = /** @type {HTMLElement} */ (frames[index].parentElement);
    strip.scrollLeft = entry.offsetLeft - strip.offsetLeft - (strip.clientWidth - entry.offsetWidth) / 2; // on a narrow screen
    slider.value = String(index);
    step.textContent = `step ${frame.step} of ${film.steps}`;
    slider.setAttribute("aria-valuetext", step.textContent);
    map.show(frame.maps[view.head], view.row, linkedColumn(film, view));
    const first = film.frames[0];
    const sentences = [sentenceOf(film, view, first), index > 0 && sentenceOf(film, view, frame), accuracySentence(film, view, frame)];
    say.setAttribute("aria-live", timer === undefined ? "polite" : "off");
    say.replaceChildren(...sentences.filter(Boolean).map((sentence) => create("p", {}, /** @type {string} */ (sentence))));
    handle.announce();
  }

  function start() {
    const reduced = matchMedia("(prefers-reduced-motion: reduce)").matches;
    play.textContent = "Pause";
    const advance = () => {
      if (index >= film.frames.length - 1) stop();
      else go(index + 1);
    };
    timer = setInterval(advance, reduced ? SLOW_FRAME_MILLISECONDS : FRAME_MILLISECONDS);
    go(index >= film.frames.length - 1 ? 0 : index);
  }

  function stop() {
    clearInterval(timer);
    timer = undefined;
    play.textContent = "Play";
    say.setAttribute("aria-live", "polite");
  }

  change(view);
  return handle;
}

/** Return the weight on the linked word, 0 without a link. @param {Film} film @param {View} view @param {number} index */
function linkedWeight(film, view, index) {
  const column = linkedColumn(film, view);
  return column === undefined ? 0 : weightOf(film.frames[index], view, column);
}

/**
 * Create a list of choices whose entries can change.
 * @param {string} label @param {string[]} texts @param {(text: string, index: number) => void} act
 */
function createList(label, texts, act) {
  const select = create("select", { class: "button" });
  select.addEventListener("change", () => act(select.value, select.selectedIndex));
  /** @param {string[]} entries @param {number} chosen */
  const fill = (entries, chosen) =>
    select.replaceChildren(...entries.map((text, index) => create("option", { value: text, selected: index === chosen }, visibleToken(text))));
  fill(texts, 0);
  const name = create("span", {}, label);
  return {
    element: create("label", {}, name, " ", select),
    fill,
    /** @param {string} text */
    rename: (text) => void (name.textContent = text),
    /** @param {string} text */
    set: (text) => void (select.value = text),
  };
}
