// The window of the heatmap as ranges of queries and keys with their values, for exports and comparisons.

import { binAt, measure } from "clearhead/heatmap.js";
import { settings, stackShown, tokenAt, windowShown, writtenAt } from "clearhead/state.js";

/** @typedef {[start: number, end: number]} Range */
/** @typedef {{ rows: Range[], keys: Range[], values: (number | undefined)[][], digits: number | undefined, sampled: boolean }} ShownMatrix */

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
  return { rows, keys, values, digits: corner.shades?.digits, sampled: Boolean(corner.sampled) };
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
export function valueTitle({ rows, keys, sampled }) {
  const note = sampled ? ", sampled" : "";
  if ([...rows, ...keys].every(isSingle)) return `${measure()}${note}`;
  return `${settings.reduce === "max" ? "largest" : "mean"} ${measure()} of each bin${note}`;
}
