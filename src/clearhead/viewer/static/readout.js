// The line above the heatmap: query, key, weight and score of the cell at the pointer, or of the selected cell.

import { element, literal, make } from "clearhead/dom.js";
import { headTitle, rangeText, significant } from "clearhead/format.js";
import { binAt, isCell, isWeighted, measure } from "clearhead/heatmap.js";
import { languageOf, on, settings, stackShown, state, tokenAt, writtenAt } from "clearhead/state.js";

/** @param {Bin} bin */
function weightText({ value, shades }) {
  if (!shades) return significant(value);
  return value > 0 && value <= shades.least
    ? `less than ${significant(shades.least, shades.digits)}`
    : significant(value, shades.digits);
}

/** @param {Bin} bin */
export function valueText(bin) {
  if (!isCell(bin)) {
    const note = bin.preview ? " (preview)" : bin.sampled ? " (sampled)" : "";
    return `${settings.reduce === "max" ? "largest" : "mean"} ${measure()} ${weightText(bin)}${note}`;
  }
  if (settings.hide && !bin.announced && stackShown().hidden.includes(bin.key)) return "hidden";
  if (isWeighted() && !bin.announced) return `${measure()} ${weightText(bin)}`;
  if (bin.score === -Infinity) return "masked: weight 0, score −∞";
  const weighted = isWeighted() && typeof bin.share === "number" ? `, × value norm ${significant(bin.value * bin.share)}` : "";
  return `weight ${weightText(bin)}${bin.score === undefined ? "" : `, score ${significant(bin.score)}`}${weighted}`;
}

/** Name a token or a range of tokens. @param {"query" | "key"} side @param {number} start @param {number} end @param {Partial<Bin>} [bin] */
export function sideText(side, start, end, bin = {}) {
  const token = end - start === 1 ? (bin[`${side}_token`] ?? tokenAt(side, start)) : undefined;
  const word = { query: ["query", "queries"], key: ["key", "keys"] }[side][end - start === 1 ? 0 : 1];
  if (token === undefined) return [`${word} ${rangeText(start, end)}`];
  const written = side === "query" ? (bin.written ?? writtenAt(start)) : "";
  const writes = written ? [" (writes ", literal(written, languageOf(side)), ")"] : [];
  return [`${word} ${start} `, literal(token, languageOf(side)), ...writes];
}

/** @param {Bin | undefined} bin */
export function readOut(bin) {
  if (!bin) return element("readout").replaceChildren();
  const query = sideText("query", bin.query, bin.queryEnd, bin);
  const key = sideText("key", bin.key, bin.keyEnd, bin);
  element("readout").replaceChildren(
    make("span", {}, ...query, " → ", ...key, ": "),
    make("strong", { textContent: valueText(bin) }),
  );
}

/** Read out the selected cell, also to screen readers. */
export function readOutCell() {
  if (!state.cell) return;
  const { query, key, query_token, key_token, written, weight, score, share } = state.cell;
  if (weight === undefined) {
    readOut(binAt(key + 0.5, query + 0.5));
    element("live").textContent = `query ${query} ${query_token}, key ${key} ${key_token}, in the bin of ${element("readout").textContent}`;
    return;
  }
  element("live").textContent = `query ${query_token}${written ? `, which writes ${written}` : ""}, key ${key_token}, weight ${significant(weight)}`;
  readOut({ query, queryEnd: query + 1, query_token, written, key, keyEnd: key + 1, key_token, value: weight, score, share, announced: true });
}

/** The head of the last summary, its query, and the query of the lists of top tokens. */
const spoken = { head: "", query: "", listed: "" };

/** Tell screen readers where the selected query looks, when another query or head is selected. */
function summarize() {
  const { top_tokens, head, cell } = state;
  if (!top_tokens || !head || !cell) return;
  const [, , tokens] = top_tokens.from.heads.find(([layer, index]) => layer === head.layer && index === head.head) ?? [];
  const query = `${head.stack} ${cell.query}`;
  const title = headTitle(head);
  if (!tokens?.length || query !== spoken.listed || (title === spoken.head && query === spoken.query)) return;
  const [, key, weight] = tokens[0];
  const name = title === spoken.head ? "" : `${title}: `;
  const summary = top_tokens.weighted ? `most of what ${top_tokens.query} gets is from ${key}` : `${top_tokens.query} looks mostly at ${key}, ${Math.round(100 * weight)} %`;
  element("live-summary").textContent = `${name}${summary}`;
  Object.assign(spoken, { head: title, query });
}

for (const event of ["cell", "settings"]) on(event, readOutCell);
on("cell", summarize);
on("top_tokens", () => {
  spoken.listed = `${state.head?.stack} ${state.cell?.query}`;
  summarize();
});
