// The selected cell and the visible window: clicks, keys and zoom buttons.

import { element } from "clearhead/dom.js";
import { clamp } from "clearhead/format.js";
import { binAt, figures } from "clearhead/heatmap.js";
import { ask, on, stackShown, state, windowShown } from "clearhead/state.js";

/** The requested cell, which may be ahead of the last answer. @type {{ query: number, key: number } | undefined} */
let requested;

/** Select a cell. @param {number} query @param {number} key */
export function pointAt(query, key) {
  requested = { query, key };
  ask("cursor", requested);
}

/** Select a token: in self-attention as query and key, otherwise on its side. @param {"query" | "key"} side @param {number} index */
export function pointAtToken(side, index) {
  const { query, key } = state.cell ?? { query: 0, key: 0 };
  const same = state.top_tokens?.same;
  pointAt(side === "query" || same ? index : query, side === "key" || same ? index : key);
}

/** Zoom around the selected cell. @param {number} factor */
export function scaleWindow(factor) {
  const { queries, keys } = stackShown();
  const [row, rowEnd, key, keyEnd] = windowShown();
  const center = state.cell ?? { query: (row + rowEnd) / 2, key: (key + keyEnd) / 2 };
  const scaled = (/** @type {number[]} */ [start, end, length, middle]) => {
    const size = clamp(Math.round((end - start) * factor), Math.min(4, length), length);
    const inside = middle >= start && middle < end ? middle : (start + end) / 2;
    const first = clamp(Math.round(inside - size / 2), 0, length - size);
    return [first, first + size];
  };
  ask("window", { rows: scaled([row, rowEnd, queries, center.query]), keys: scaled([key, keyEnd, keys, center.key]) });
}

export const showAll = () => ask("window", { rows: [0, stackShown().queries], keys: [0, stackShown().keys] });

/** Move the selected cell; the window follows it. @param {number} down @param {number} across */
export function moveCursor(down, across) {
  const { queries, keys } = stackShown();
  const [row, rowEnd, key, keyEnd] = windowShown();
  const from = requested ?? state.cell ?? { query: 0, key: 0 };
  const query = clamp(from.query + down, 0, queries - 1);
  const column = clamp(from.key + across, 0, keys - 1);
  const moved = (/** @type {number} */ index, /** @type {number} */ start, /** @type {number} */ end) =>
    index < start ? [index, index + end - start] : index >= end ? [index + 1 - end + start, index + 1] : [start, end];
  if (query < row || query >= rowEnd || column < key || column >= keyEnd) {
    ask("window", { rows: moved(query, row, rowEnd), keys: moved(column, key, keyEnd) });
  }
  pointAt(query, column);
}

/** @param {KeyboardEvent} event */
function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !state.cell) return;
  const step = event.shiftKey ? 10 : 1;
  const action = {
    ArrowUp: () => moveCursor(-step, 0),
    ArrowDown: () => moveCursor(step, 0),
    ArrowLeft: () => moveCursor(0, -step),
    ArrowRight: () => moveCursor(0, step),
    "+": () => scaleWindow(0.5),
    "=": () => scaleWindow(0.5),
    "-": () => scaleWindow(2),
    0: showAll,
  }[event.key];
  if (!action) return;
  action();
  event.preventDefault();
}

on("ready", () => {
  figures.map.on_event("tap", (/** @type {any} */ { x, y }) => binAt(x, y) && pointAt(Math.floor(y), Math.floor(x)));
});
on("head", () => (requested = undefined));
on("cell", () => {
  if (requested?.query === state.cell?.query && requested?.key === state.cell?.key) requested = undefined;
});
element("closer").addEventListener("click", () => scaleWindow(0.5));
element("farther").addEventListener("click", () => scaleWindow(2));
element("all").addEventListener("click", showAll);
element("chart").addEventListener("keydown", pressed);
