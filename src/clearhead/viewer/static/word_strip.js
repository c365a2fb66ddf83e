// The keys of the window as running text, shaded by their weight for the selected query. For texts too long for lines.

import { pointAtToken } from "clearhead/cursor.js";
import { element, literal, make } from "clearhead/dom.js";
import { headId, significant } from "clearhead/format.js";
import { isWeighted, measure } from "clearhead/heatmap.js";
import { languageOf, on, settings, stackShown, state } from "clearhead/state.js";
import { drawing } from "clearhead/word_lines.js";

const LEGEND = [0, 0.01, 0.1, 0.5, 1]; // weights whose shades are explained

/** Return the share of the full shade: absolute, and larger than the weight, so that small weights are visible. @param {number} weight */
const shadeOf = (weight) => Math.sqrt(Math.min(1, Math.max(0, weight))).toFixed(3);

/** @param {any} node @param {number} weight */
function shade(node, weight) {
  node.style.setProperty("--share", shadeOf(weight));
  return node;
}

function showStrip() {
  if (!state.head || !drawing.words) return;
  const stack = stackShown();
  if (stack.cells === false) return; // a report of a long text lists the top keys instead
  const isWhole = drawing.words.keys.length === stack.keys && drawing.words.queries.length === stack.queries;
  element("strip").hidden = isWhole;
  if (element("strip").hidden) return;
  const { keys, key } = state.tokens ?? { keys: [], key: 0 };
  const { row, start, query, head, shares } = state.row ?? {};
  if (!keys.length) return element("strip").replaceChildren(make("p", { className: "quiet", textContent: "Zoom in to 512 keys or fewer to read the text here." }));
  // the row of this head and window follows
  if (!row || start !== key || query !== state.cell?.query || head !== headId(state.head)) return;
  const hidden = new Set(settings.hide ? stack.hidden : []);
  const words = keys.map((text, offset) => {
    const index = key + offset;
    const weight = hidden.has(index) ? 0 : row[offset] * (isWeighted() ? (shares?.[offset] ?? 1) : 1);
    const title = `key ${index}, ${hidden.has(index) ? "hidden" : `${measure()} ${significant(weight)}`}`;
    const token = make("button", { type: "button", className: index === state.cell?.key ? "tok chosen" : "tok", title }, literal(text, languageOf("key")));
    token.addEventListener("click", () => pointAtToken("key", index));
    return shade(token, weight);
  });
  const legend = LEGEND.map((weight) => shade(make("span", { className: "tok", textContent: String(weight) }), weight));
  element("strip").replaceChildren(
    make("p", { className: "quiet" }, `The window's text, shaded by ${measure()} for `, literal(state.cell?.query_token ?? "", languageOf("query")), ": ", ...legend),
    make("div", { className: "strip", role: "group", ariaLabel: "Keys of the window, shaded by weight" }, ...words),
  );
}

for (const event of ["tokens", "cell", "row", "words", "settings"]) on(event, showStrip);
