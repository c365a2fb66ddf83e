// The line below the heatmap: query, key, weight and score of the cell at the pointer, or of the selected cell.

import { element, literal, make } from "clearhead/dom.js";
import { rangeText, significant } from "clearhead/format.js";
import { binAt, figures, isCell } from "clearhead/heatmap.js";
import { on, settings, stackShown, state, tokenAt } from "clearhead/state.js";

/** @param {Bin} bin */
function weightText({ value, shades }) {
  if (!shades) return significant(value);
  return value > 0 && value <= shades.least
    ? `less than ${significant(shades.least, shades.digits)}`
    : significant(value, shades.digits);
}

/** @param {Bin} bin */
function valueText(bin) {
  if (!isCell(bin)) {
    const note = bin.preview ? " (preview)" : bin.sampled ? " (sampled)" : "";
    return `${settings.reduce === "max" ? "largest" : "mean"} weight ${weightText(bin)}${note}`;
  }
  if (settings.hide && !bin.announced && stackShown().hidden.includes(bin.key)) return "hidden";
  return `weight ${weightText(bin)}${bin.score === undefined ? "" : `, score ${significant(bin.score)}`}`;
}

/** @param {Bin} bin @param {"query" | "key"} side @param {number} start @param {number} end */
function sideText(bin, side, start, end) {
  const token = end - start === 1 ? (bin[`${side}_token`] ?? tokenAt(side, start)) : undefined;
  const word = { query: ["query", "queries"], key: ["key", "keys"] }[side][end - start === 1 ? 0 : 1];
  return token === undefined ? [`${word} ${rangeText(start, end)}`] : [`${word} ${start} `, literal(token)];
}

/** @param {Bin | undefined} bin */
export function readOut(bin) {
  if (!bin) return element("readout").replaceChildren();
  const query = sideText(bin, "query", bin.query, bin.queryEnd);
  const key = sideText(bin, "key", bin.key, bin.keyEnd);
  element("readout").replaceChildren(
    make("span", {}, ...query, " → ", ...key, ": "),
    make("strong", { textContent: valueText(bin) }),
  );
}

/** Read out the selected cell, also to screen readers. */
export function readOutCell() {
  if (!state.cell) return;
  const { query, key, query_token, key_token, weight, score } = state.cell;
  if (weight === undefined) {
    readOut(binAt(key + 0.5, query + 0.5));
    element("live").textContent = `query ${query} ${query_token}, key ${key} ${key_token}, in the bin of ${element("readout").textContent}`;
    return;
  }
  element("live").textContent = `query ${query_token}, key ${key_token}, weight ${significant(weight)}`;
  readOut({ query, queryEnd: query + 1, query_token, key, keyEnd: key + 1, key_token, value: weight, score, announced: true });
}

on("ready", () => {
  figures.map.on_event("mousemove", (/** @type {any} */ { x, y }) => state.head && readOut(binAt(x, y)));
  figures.map.on_event("mouseleave", readOutCell);
});
on("cell", readOutCell);
