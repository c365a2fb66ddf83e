// Queries on the left, keys on the right, and a line for each weight of the heads that are turned on.

import { draw, element, literal, make, rowLabel } from "clearhead/dom.js";
import { clamp, headId, percent } from "clearhead/format.js";
import { colorSlots } from "clearhead/head_toggles.js";
import { isWeighted } from "clearhead/heatmap.js";
import { announce, languageOf, openHead, settings, stackShown, state, windowShown } from "clearhead/state.js";

/**
 * @typedef {"query" | "key"} Side
 * @typedef {{ head: number, query: number, key: number, weight: number }} Line positions in the lists of the payload
 * @typedef {{ side: Side, position: number }} Word
 */

const MIN_WEIGHT = 0.02; // of a drawn line
export const LINE_WIDTH = 7; // pixels of a weight of 1
const HEIGHT = 480; // pixels for the longer side, unless its words would be too small
const [MIN_STEP, MAX_STEP] = [15, 25]; // pixels between words
const SPAN = 300; // width of the lines in their coordinates, scaled to the page

/** What is drawn, and the word or line at the pointer. */
export const drawing = {
  /** @type {WordsPayload | null} */ words: null,
  /** @type {Line[]} */ lines: [],
  /** @type {Word | undefined} */ isolated: undefined,
  /** @type {Line | undefined} */ pointed: undefined,
};
let step = MAX_STEP;
/** Rows of the words of each side, which include gaps. @type {Record<Side, number[]>} */
let rows = { query: [], key: [] };
/** @type {Record<Side, any[]>} */
export let buttons = { query: [], key: [] };
/** Labels at the isolated word's partners. @type {Element[]} */
let shares = [];
const groups = { every: draw("g", { class: "every" }), isolated: draw("g", { class: "isolated" }), pointed: draw("g", { class: "pointed" }) };
export const picture = draw("svg", { class: "links", preserveAspectRatio: "none", "aria-hidden": "true" }, groups.every, groups.isolated, groups.pointed);
const sides = { query: make("div", { className: "column queries" }), key: make("div", { className: "column keys" }) };

/** @param {Side} side @param {number} position @returns {number} index of a word in the text */
export const indexOf = (side, position) => drawing.words?.[side === "query" ? "queries" : "keys"][position] ?? 0;
const positionAt = (/** @type {Side} */ side, /** @type {number | undefined} */ index) => (index === undefined ? -1 : (drawing.words?.[side === "query" ? "queries" : "keys"].indexOf(index) ?? -1));

// -- words ---------------------------------------------------------------------------------------------------------------------

/** Draw the words of a new payload and the lines between them. @param {WordsPayload} words */
export function drawWords(words) {
  const focused = wordAt(document.activeElement);
  const kept = [focused, drawing.isolated].map((word) => word && { side: word.side, index: indexOf(word.side, word.position) });
  drawing.words = words;
  const length = { query: stackShown().queries, key: stackShown().keys };
  const parts = { query: sideWords("query", words.queries, length.query), key: sideWords("key", words.keys, length.key) };
  const most = Math.max(parts.query.height, parts.key.height);
  step = clamp(Math.floor(HEIGHT / most), MIN_STEP, MAX_STEP);
  rows = { query: parts.query.rows, key: parts.key.rows };
  buttons = {
    query: words.query_tokens.map((text, position) => wordButton("query", position, rowLabel(text, words.written?.[position], languageOf("query")))),
    key: words.key_tokens.map((text, position) => wordButton("key", position, literal(text, languageOf("key")))),
  };
  for (const side of /** @type {Side[]} */ (["query", "key"])) {
    const gaps = parts[side].gaps.map((row) => make("span", { className: "gap", textContent: "⋮", title: "Tokens that are not shown", style: `grid-row: ${row + 1}` }));
    sides[side].replaceChildren(...buttons[side], ...gaps);
    sides[side].setAttribute("role", "group");
    sides[side].setAttribute("aria-label", side === "query" ? "Queries" : "Keys");
  }
  picture.setAttribute("viewBox", `0 0 ${SPAN} ${most * step}`);
  const box = element("lines");
  box.style.setProperty("--step", `${step}px`);
  box.style.setProperty("--rows", String(most));
  if (picture.parentNode !== box) box.replaceChildren(sides.query, picture, sides.key);
  const [refocused, isolated] = kept.map((word) => word && { side: word.side, position: positionAt(word.side, word.index) });
  drawing.isolated = isolated && isolated.position >= 0 ? isolated : undefined;
  drawLines();
  if (refocused) buttons[refocused.side][refocused.position]?.focus();
}

/** Return the rows of a side's words. A gap takes one row. @param {Side} side @param {number[]} indices @param {number} length */
function sideWords(side, indices, length) {
  /** @type {number[]} */
  const gaps = [];
  /** @type {number[]} */
  const positions = [];
  let row = 0;
  indices.forEach((index, position) => {
    if (index !== (position ? indices[position - 1] + 1 : 0)) gaps.push(row++);
    positions.push(row++);
  });
  if (indices[indices.length - 1] < length - 1) gaps.push(row++);
  return { rows: positions, gaps, height: row, side };
}

/** @param {Side} side @param {number} position @param {Node} label */
function wordButton(side, position, label) {
  const button = make("button", { type: "button", className: "word", tabIndex: -1, style: `grid-row: ${rows[side][position] + 1}` }, label);
  button.dataset.side = side;
  button.dataset.position = String(position);
  return button;
}

/** @param {any} target @returns {Word | undefined} */
export function wordAt(target) {
  const button = target instanceof Element ? /** @type {HTMLElement | null} */ (target.closest("#lines .word")) : null;
  return button ? { side: /** @type {Side} */ (button.dataset.side), position: Number(button.dataset.position) } : undefined;
}

/** Mark the selected words, which are also the tab stops of their sides. */
function markWords() {
  for (const side of /** @type {Side[]} */ (["query", "key"])) {
    const selected = positionAt(side, state.cell?.[side]);
    buttons[side].forEach((button, position) => {
      button.classList.toggle("chosen", position === selected);
      button.tabIndex = position === Math.max(0, selected) ? 0 : -1;
    });
  }
}

// -- lines ---------------------------------------------------------------------------------------------------------------------

/** Draw the lines of all heads that are turned on. */
export function drawLines() {
  const { words } = drawing;
  if (!words) return;
  const hidden = new Set(settings.hide ? stackShown().hidden : []);
  const [queries, keys] = [words.queries.length, words.keys.length];
  const shares = isWeighted() ? words.shares : null;
  drawing.lines = [];
  for (const head of colorSlots().keys()) {
    if (head >= words.heads) continue;
    for (let query = 0; query < queries; query++) {
      for (let key = 0; key < keys; key++) {
        const weight = words.weights[(head * queries + query) * keys + key] * (shares?.[head * keys + key] ?? 1);
        if (weight >= MIN_WEIGHT && !hidden.has(words.keys[key])) drawing.lines.push({ head, query, key, weight });
      }
    }
  }
  drawing.lines.sort((one, other) => one.weight - other.weight); // strong lines on top
  markWords();
  paintLines();
  isolate(drawing.isolated);
}

let emphasized = -1; // position of the query whose lines are darker
const opacityOf = (/** @type {Line} */ { query, weight }) => (query === emphasized ? 0.4 + 0.6 * weight : 0.1 + 0.5 * weight);

function paintLines() {
  emphasized = positionAt("query", state.cell?.query);
  const slots = colorSlots();
  groups.every.replaceChildren(...drawing.lines.map((line) => pathOf(line, slots, opacityOf(line))));
}

/** Mark the words of the selected cell and the lines of its query. */
export function showSelection() {
  markWords();
  const former = emphasized;
  emphasized = positionAt("query", state.cell?.query);
  if (former === emphasized) return;
  drawing.lines.forEach((line, index) => {
    if (line.query === former || line.query === emphasized) groups.every.children[index].setAttribute("stroke-opacity", opacityOf(line).toFixed(3));
  });
}

/** Return the height of a word in the picture, in pixels. */
export const heightOf = (/** @type {Side} */ side, /** @type {number} */ position) => step * (rows[side][position] + 0.5);

/** @param {Line} line @param {Map<number, number>} slots @param {number} opacity */
function pathOf({ head, query, key, weight }, slots, opacity) {
  const [start, end] = [heightOf("query", query), heightOf("key", key)];
  return draw("path", {
    class: `slot-${slots.get(head)}`, "vector-effect": "non-scaling-stroke", "stroke-linecap": "round", d: `M0 ${start} C${SPAN / 3} ${start} ${(2 * SPAN) / 3} ${end} ${SPAN} ${end}`,
    "stroke-width": Math.max(0.6, LINE_WIDTH * weight).toFixed(2), "stroke-opacity": Math.min(1, opacity).toFixed(3),
  });
}

/** Show the lines of one word alone, and its weights at the words that they lead to. @param {Word | undefined} word */
export function isolate(word) {
  drawing.isolated = word;
  const slots = colorSlots();
  const shown = word ? drawing.lines.filter((line) => line[word.side] === word.position) : [];
  groups.isolated.replaceChildren(...shown.map((line) => pathOf(line, slots, 0.35 + 0.65 * line.weight)));
  element("lines").classList.toggle("isolating", Boolean(word));
  for (const share of shares) share.remove();
  shares = word ? sharesOf(word, shown, slots) : [];
  pointAtLine(undefined);
}

/** @param {Word} word @param {Line[]} shown @param {Map<number, number>} slots */
function sharesOf(word, shown, slots) {
  const other = word.side === "query" ? "key" : "query";
  return [...new Set(shown.map((line) => line[other]))].map((position) => {
    const lines = shown.filter((line) => line[other] === position).sort((one, next) => one.head - next.head);
    const squares = lines.map(({ head, weight }) => {
      const square = make("i", { className: `slot-${slots.get(head)}` });
      square.style.setProperty("--share", weight.toFixed(3));
      return square;
    });
    const share = make("span", { className: "share" }, ...squares, percent(Math.max(...lines.map(({ weight }) => weight))));
    buttons[other][position].append(share);
    return share;
  });
}

/** @param {Line | undefined} line */
export function pointAtLine(line) {
  drawing.pointed = line;
  groups.pointed.replaceChildren(...(line ? [pathOf({ ...line, weight: line.weight + 0.3 }, colorSlots(), 1)] : []));
  announce("isolated");
}

/** Open the head of a line in the heatmap, with its cell selected. @param {Line} line */
export function openLine({ head, query, key }) {
  const { words } = drawing;
  if (!words) return;
  const cursor = [words.queries[query], words.keys[key]];
  const [row, rowEnd, first, end] = windowShown();
  const inside = cursor[0] >= row && cursor[0] < rowEnd && cursor[1] >= first && cursor[1] < end;
  openHead(headId({ stack: words.stack, layer: words.layer, head }), { cursor, ...(inside ? { rows: [row, rowEnd], keys: [first, end] } : {}) });
  element("head").scrollIntoView({ block: "start" });
}
