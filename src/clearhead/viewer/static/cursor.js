// The selected cell and the visible window: clicks, keys and zoom buttons.

import { element } from "clearhead/dom.js";
import { clamp, headId } from "clearhead/format.js";
import { ask, on, openHead, stackShown, state, windowShown } from "clearhead/state.js";

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

/** Zoom around the selected cell, on both sides or one. @param {number} factor @param {"query" | "key"} [side] */
function scaleWindow(factor, side) {
  const { queries, keys } = stackShown();
  const [row, rowEnd, key, keyEnd] = windowShown();
  const center = state.cell ?? { query: (row + rowEnd) / 2, key: (key + keyEnd) / 2 };
  const scaled = (/** @type {number[]} */ [start, end, length, middle]) => {
    const size = clamp(Math.round((end - start) * factor), Math.min(4, length), length);
    const inside = middle >= start && middle < end ? middle : (start + end) / 2;
    const first = clamp(Math.round(inside - size / 2), 0, length - size);
    return [first, first + size];
  };
  ask("window", {
    rows: side === "key" ? [row, rowEnd] : scaled([row, rowEnd, queries, center.query]),
    keys: side === "query" ? [key, keyEnd] : scaled([key, keyEnd, keys, center.key]),
  });
}

const showAll = () => ask("window", { rows: [0, stackShown().queries], keys: [0, stackShown().keys] });

/** Move the selected cell; the window follows it. @param {number} down @param {number} across */
export function moveCursor(down, across) {
  const from = requested ?? state.cell ?? { query: 0, key: 0 };
  showCell(from.query + down, from.key + across);
}

/** Select a cell and move the window to it, if it is outside. @param {number} cellQuery @param {number} cellKey */
export function showCell(cellQuery, cellKey) {
  const { queries, keys } = stackShown();
  const [row, rowEnd, key, keyEnd] = windowShown();
  const query = clamp(cellQuery, 0, queries - 1);
  const column = clamp(cellKey, 0, keys - 1);
  const moved = (/** @type {number} */ index, /** @type {number} */ start, /** @type {number} */ end) =>
    index < start ? [index, index + end - start] : index >= end ? [index + 1 - end + start, index + 1] : [start, end];
  if (query < row || query >= rowEnd || column < key || column >= keyEnd) {
    ask("window", { rows: moved(query, row, rowEnd), keys: moved(column, key, keyEnd) });
  }
  pointAt(query, column);
}

/** Open the next head of the model, or the previous one. @param {number} step */
function stepHead(step) {
  if (!state.head) return;
  const heads = state.model.stacks.flatMap(({ name, heads: counts }) =>
    counts.flatMap((count, layer) => Array.from({ length: count }, (_, head) => headId({ stack: name, layer, head }))),
  );
  const [row, rowEnd, key, keyEnd] = windowShown();
  const next = heads[(heads.indexOf(headId(state.head)) + step + heads.length) % heads.length];
  const isSameStack = next.startsWith(`${state.head.stack}.`);
  openHead(next, isSameStack ? { rows: [row, rowEnd], keys: [key, keyEnd] } : {});
}

/** @param {KeyboardEvent} event */
function pressed(event) {
  if (event.metaKey || event.altKey || !state.cell) return;
  const { query } = requested ?? state.cell;
  const { queries, keys } = stackShown();
  const step = event.shiftKey ? 10 : 1;
  /** @type {Record<string, () => void>} */
  const corners = { Home: () => showCell(0, 0), End: () => showCell(queries - 1, keys - 1) };
  /** @type {Record<string, () => void>} */
  const actions = {
    ArrowUp: () => moveCursor(-step, 0),
    ArrowDown: () => moveCursor(step, 0),
    ArrowLeft: () => moveCursor(0, -step),
    ArrowRight: () => moveCursor(0, step),
    Home: () => showCell(query, 0),
    End: () => showCell(query, keys - 1),
    "+": () => scaleWindow(0.5),
    "=": () => scaleWindow(0.5),
    "-": () => scaleWindow(2),
    0: showAll,
    q: () => scaleWindow(0.5, "query"),
    Q: () => scaleWindow(2, "query"),
    k: () => scaleWindow(0.5, "key"),
    K: () => scaleWindow(2, "key"),
    n: () => stepHead(1),
    "]": () => stepHead(1),
    p: () => stepHead(-1),
    "[": () => stepHead(-1),
  };
  const action = (event.ctrlKey ? corners : actions)[event.key];
  if (!action) return;
  action();
  event.preventDefault();
}

on("head", () => (requested = undefined));
on("cell", () => {
  if (requested?.query === state.cell?.query && requested?.key === state.cell?.key) requested = undefined;
});
element("closer").addEventListener("click", () => scaleWindow(0.5));
element("farther").addEventListener("click", () => scaleWindow(2));
element("all").addEventListener("click", showAll);
element("closer-rows").addEventListener("click", () => scaleWindow(0.5, "query"));
element("farther-rows").addEventListener("click", () => scaleWindow(2, "query"));
element("closer-keys").addEventListener("click", () => scaleWindow(0.5, "key"));
element("farther-keys").addEventListener("click", () => scaleWindow(2, "key"));
element("chart").addEventListener("keydown", pressed);
