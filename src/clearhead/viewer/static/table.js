// The window as a table, for screen readers.

import { element, literal, make } from "clearhead/dom.js";
import { rangeText, significant } from "clearhead/format.js";
import { binAt, measure } from "clearhead/heatmap.js";
import { on, settings, stackShown, state, tokenAt, windowShown } from "clearhead/state.js";

const MAX_TABLE_SIZE = 64; // rows and columns; a larger window is pooled

/** @typedef {[start: number, end: number]} Range */

function fillTable() {
  if (!element("window-table").open || !state.tokens) return;
  const [row, rowEnd, key, keyEnd] = windowShown();
  const corner = binAt(key + 0.5, row + 0.5);
  if (!corner || corner.preview) return;
  const rows = ranges(corner.query, rowEnd, corner.queryEnd - corner.query, stackShown().queries);
  const columns = ranges(corner.key, keyEnd, corner.keyEnd - corner.key, stackShown().keys);
  const single = [...rows, ...columns].every(([start, end]) => end - start === 1);
  element("window-caption").textContent = single
    ? `The ${measure()} of each query (row) and key (column).`
    : `The ${settings.reduce === "max" ? "largest" : "mean"} ${measure()} of each range of queries (rows) and keys (columns)${corner.sampled ? ", from the sampled queries" : ""}.`;
  const digits = corner.shades?.digits ?? 3;
  const head = make("tr", {}, make("td"), ...columns.map((range) => heading("key", range, "col")));
  const cell = (/** @type {Range} */ range, /** @type {Range} */ other) =>
    make("td", { className: "number", textContent: significant(pooled(range, other), digits) });
  const body = rows.map((range) => make("tr", {}, heading("query", range, "row"), ...columns.map((other) => cell(range, other))));
  element("window-cells").replaceChildren(make("thead", {}, head), make("tbody", {}, ...body));
}

/** @param {"query" | "key"} side @param {Range} range @param {string} scope */
function heading(side, [start, end], scope) {
  const token = end - start === 1 ? tokenAt(side, start) : undefined;
  if (token === undefined) return make("th", { scope, textContent: rangeText(start, end) });
  const texts = (side === "query" ? state.tokens?.rows : state.tokens?.keys) ?? [];
  const isRepeated = texts.indexOf(token) !== texts.lastIndexOf(token);
  return make("th", { scope }, literal(token), isRepeated ? make("span", { textContent: ` ${start}` }) : undefined);
}

/**
 * Return ranges of whole bins, so that ranges do not overlap.
 * @param {number} start
 * @param {number} end
 * @param {number} bin size of a bin
 * @param {number} length
 */
function ranges(start, end, bin, length) {
  const size = bin * Math.ceil((end - start) / bin / MAX_TABLE_SIZE);
  /** @type {Range[]} */
  const listed = [];
  for (let first = start; first < end; first += size) {
    listed.push([first, Math.min(length, first + Math.min(size, bin * Math.ceil((end - first) / bin)))]);
  }
  return listed;
}

/** @param {Range} rows @param {Range} keys */
function pooled([row, rowEnd], [key, keyEnd]) {
  let [most, sum, cells] = [0, 0, 0];
  for (let y = row; y < rowEnd; ) {
    /** @type {Bin | undefined} */
    let bin;
    for (let x = key; x < keyEnd; x = bin.keyEnd) {
      bin = binAt(x + 0.5, y + 0.5);
      if (!bin) return null;
      const size = (bin.queryEnd - bin.query) * (bin.keyEnd - bin.key);
      most = Math.max(most, bin.value);
      sum += size * bin.value;
      cells += size;
    }
    if (!bin) return null;
    y = bin.queryEnd;
  }
  return settings.reduce === "max" ? most : sum / cells;
}

element("window-table").addEventListener("toggle", fillTable);
for (const event of ["tokens", "drawn"]) on(event, fillTable);
