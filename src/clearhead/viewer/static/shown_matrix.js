// The window of the heatmap as ranges of queries and keys with their values, for exports and comparisons.

import { binAt, measure, uncoveredCells } from "clearhead/heatmap.js";
import { settings, stackShown, tokenAt, windowShown, writtenAt } from "clearhead/state.js";

/** @typedef {[start: number, end: number]} Range */
/** @typedef {{ rows: Range[], keys: Range[], values: (number | undefined)[][], binned: boolean, digits: number | undefined, sampled: boolean }} ShownMatrix */

/**
 * Return the bins of the window, or undefined while they are being computed. A hidden key has no values.
 * @returns {ShownMatrix | undefined}
 */
export function shownMatrix() {
  const [row, rowEnd, key, keyEnd] = windowShown();
  const corner = binAt(key + 0.5, row + 0.5);
  if (!corner || corner.preview) return undefined;
  const rows = rangesFrom(row, rowEnd, (index) => binAt(key + 0.5, index + 0.5), "query");
  const keys = rangesFrom(key, keyEnd, (index) => binAt(index + 0.5, row + 0.5), "key");
  const hidden = new Set(settings.hide ? stackShown().hidden : []);
  const value = (/** @type {number} */ query, /** @type {Range} */ [start, end]) =>
    end - start === 1 && hidden.has(start) ? undefined : binAt(start + 0.5, query + 0.5)?.value;
  const values = rows.map(([query]) => keys.map((range) => value(query, range)));
  const binned = ![...rows, ...keys].every(isSingle);
  return { rows, keys, values, binned, digits: corner.shades?.digits, sampled: Boolean(corner.sampled) };
}

/**
 * Return the matrix as the map draws it: without the masked cells of bins, where a report leaves them out. A cell has
 * the value of its bin, which is not its weight, so that tables have bins.
 * @param {ShownMatrix} matrix
 * @returns {ShownMatrix}
 */
export function drawnMatrix(matrix) {
  const cells = uncoveredCells();
  if (!cells) return matrix;
  const { image: [image], x: [key], y: [row] } = cells;
  const [down, across] = image.shape;
  /** @type {(start: number, count: number) => Range[]} */
  const singles = (start, count) => Array.from({ length: count }, (_, index) => [start + index, start + index + 1]);
  const [rows, keys] = [singles(row, down), singles(key, across)];
  return { ...matrix, rows, keys, values: rows.map((_, line) => keys.map((_, column) => image[line * across + column])) };
}

/** @param {number} start @param {number} end @param {(index: number) => Bin | undefined} bin @param {"query" | "key"} side */
function rangesFrom(start, end, bin, side) {
  /** @type {Range[]} */
  const ranges = [];
  for (let index = start; index < end; ) {
    const covering = bin(index);
    if (!covering) break;
    ranges.push([covering[side], covering[`${side}End`]]);
    index = covering[`${side}End`];
  }
  return ranges;
}

/** @param {Range} range */
export const isSingle = ([start, end]) => end - start === 1;

/** Return the token of a range of one query or key, if it is known, with the token that the query writes. @param {"query" | "key"} side @param {Range} range */
export function tokenOf(side, range) {
  const token = isSingle(range) ? tokenAt(side, range[0]) : undefined;
  const written = side === "query" && token !== undefined ? writtenAt(range[0]) : "";
  return written ? `${token} → ${written}` : token;
}

/** Return what the values are, such as "largest weight of each bin". @param {ShownMatrix} matrix */
export function valueTitle({ binned, sampled }) {
  const note = sampled ? ", sampled" : "";
  if (!binned) return `${measure()}${note}`;
  return `${settings.reduce === "max" ? "largest" : "mean"} ${measure()} of each bin${note}`;
}
