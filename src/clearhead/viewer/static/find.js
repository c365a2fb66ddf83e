// Search of the text: all occurrences on the axes, next and previous, and a token by its position.

import { pointAt } from "clearhead/cursor.js";
import { element, make } from "clearhead/dom.js";
import { clamp } from "clearhead/format.js";
import { figures } from "clearhead/heatmap.js";
import { announce, ask, on, stackShown, state, windowShown } from "clearhead/state.js";

const WAIT = 150; // milliseconds after the last letter
const READABLE_TOKENS = 512; // a longer side of the window is zoomed to show the token
const NEAR_TOKENS = 64; // its new length
const MARK_SIZE = 5; // pixels

/** The last answer; Bokeh sends no second answer that equals it. @type {SearchPayload | null} */
let answer = null;
let current = -1; // index of the hit that is selected
/** The step asked for before the answer has come. @type {1 | -1 | 0} */
let asked = 0;

const axis = () => /** @type {"queries" | "keys"} */ (element("find-side").value);

// -- the search ----------------------------------------------------------------------------------------------------------------

/** @type {ReturnType<typeof setTimeout> | undefined} */
let typing;

function typed() {
  clearTimeout(typing);
  typing = setTimeout(search, WAIT);
}

function search() {
  clearTimeout(typing);
  typing = undefined;
  const text = element("wanted").value;
  if (!state.head) return;
  if (!text.trim()) return show(null);
  if (isCurrent(answer)) return show(answer);
  ask("search", { axis: axis(), text });
}

/** Return whether these hits are those of the typed text. @param {SearchPayload | null} hits */
const isCurrent = (hits) => !!hits && hits.text === element("wanted").value && hits.axis === axis() && hits.stack === state.head?.stack;

/** @param {SearchPayload | null} hits */
function show(hits) {
  state.search = hits;
  announce("search");
}

function searched() {
  answer = state.search ?? answer;
  current = -1;
  showCount();
  drawMarks();
  const next = asked;
  asked = 0;
  if (next && state.search?.count) step(next);
}

function showCount() {
  const { search: hits } = state;
  const count = hits?.count.toLocaleString("en");
  element("find-count").textContent = !hits ? "" : !hits.count ? "not in the text" : current < 0 ? `${count} found` : `${current + 1} of ${count}`;
  for (const id of ["find-next", "find-previous"]) element(id).disabled = !hits?.count;
}

/** Select the next hit, or the previous one, as soon as the hits of the typed text are there. @param {1 | -1} step */
function step(step) {
  const { search: hits, cell } = state;
  if (!hits || !isCurrent(hits)) {
    asked = step;
    return search();
  }
  if (!hits.ranges.length || !cell) return;
  const { ranges } = hits;
  const from = hits.axis === "queries" ? cell.query : cell.key;
  if (current < 0) {
    const after = ranges.findIndex(([start]) => start >= from);
    current = step > 0 ? Math.max(after, 0) : (after < 0 ? ranges.length : after) - 1;
  } else current += step;
  current = (current + ranges.length) % ranges.length;
  goTo(hits.axis === "queries" ? "query" : "key", ranges[current][0]);
  showCount();
  drawMarks();
}

/** Select a token, and zoom to it if its side of the window is too long to read. @param {"query" | "key"} side @param {number} index */
export function goTo(side, index) {
  const { queries, keys } = stackShown();
  const [row, rowEnd, key, keyEnd] = windowShown();
  const { query, key: column } = state.cell ?? { query: 0, key: 0 };
  const length = side === "query" ? queries : keys;
  const target = clamp(index, 0, length - 1);
  const [start, end] = side === "query" ? [row, rowEnd] : [key, keyEnd];
  if (end - start > READABLE_TOKENS || target < start || target >= end) {
    const moved = around(target, Math.min(end - start, end - start > READABLE_TOKENS ? NEAR_TOKENS : length), length);
    ask("window", side === "query" ? { rows: moved, keys: [key, keyEnd] } : { rows: [row, rowEnd], keys: moved });
  }
  if (side === "query") pointAt(target, column);
  else pointAt(query, target);
}

/** Return a range of `size` tokens around a token. @param {number} index @param {number} size @param {number} length */
export function around(index, size, length) {
  const start = clamp(index - Math.floor(size / 2), 0, Math.max(0, length - size));
  return [start, Math.min(length, start + size)];
}

// -- marks on the axes -----------------------------------------------------------------------------------------------------------

const marks = make("div", { className: "matches", ariaHidden: "true" });

/** Draw a mark at every hit of the window, outside of the frame. */
function drawMarks() {
  const hits = state.search;
  if (!hits || hits.stack !== state.head?.stack) return marks.replaceChildren();
  const { frame } = Bokeh.index.find_one(figures.map);
  const { left, top } = frame.bbox;
  const { x_range: across, y_range: down } = figures.map;
  const [scale, low, high] = hits.axis === "keys" ? [frame.x_scale, across.start, across.end] : [frame.y_scale, down.end, down.start];
  const inside = hits.ranges.map((range, index) => ({ range, index })).filter(({ range: [start, end] }) => end > low && start < high);
  marks.replaceChildren(
    ...inside.map(({ range: [start, end], index }) => {
      const [from, to] = [scale.compute(Math.max(low, start)), scale.compute(Math.min(high, end))];
      const mark = make("span", { className: index === current ? "current" : "" });
      const size = `${Math.max(1, to - from)}px`;
      Object.assign(mark.style, hits.axis === "keys"
        ? { left: `${from}px`, width: size, top: `${top - MARK_SIZE}px`, height: `${MARK_SIZE}px` }
        : { top: `${from}px`, height: size, left: `${left - MARK_SIZE}px`, width: `${MARK_SIZE}px` });
      return mark;
    }),
  );
}

// ------------------------------------------------------------------------------------------------------------------------------

on("ready", () => {
  element("map").append(marks);
  for (const range of [figures.map.x_range, figures.map.y_range]) range.change.connect(drawMarks);
});
on("search", searched);
on("model", () => (answer = null));
on("head", () => state.search?.stack !== state.head?.stack && search());
element("wanted").addEventListener("input", typed);
element("find-side").addEventListener("change", search);
element("find").addEventListener("submit", (/** @type {Event} */ event) => {
  event.preventDefault();
  step(1);
});
element("wanted").addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
  if (event.key !== "Enter") return;
  event.preventDefault(); // the form does not submit while its button is disabled
  step(event.shiftKey ? -1 : 1);
});
element("find-previous").addEventListener("click", () => step(-1));
element("position").addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
  if (event.key !== "Enter") return;
  event.preventDefault(); // otherwise the form searches
  const digits = element("position").value.replace(/[,\s]/g, "");
  if (/^\d+$/.test(digits) && state.head) goTo(axis() === "queries" ? "query" : "key", Number(digits));
});
element("chart").addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
  if (event.key !== "/") return;
  event.preventDefault();
  element("wanted").focus();
});
