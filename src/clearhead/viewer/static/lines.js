// The text of one head: lines between the tokens of a short text, or the keys of the window shaded by weight.

import { pointAtToken } from "clearhead/cursor.js";
import { draw, element, literal, make } from "clearhead/dom.js";
import { significant } from "clearhead/format.js";
import { binAt } from "clearhead/heatmap.js";
import { state } from "clearhead/state.js";

const STEP = 22; // pixels between tokens
const MIN_WEIGHT = 0.02; // of a drawn line
const [LEFT, RIGHT] = [210, 430]; // ends of the lines, in pixels

/** Draw queries on the left, keys on the right, and a line for each weight. */
export function showLines() {
  const { queries = [], keys = [] } = state.head ?? {};
  const y = (/** @type {number} */ index) => STEP * index + STEP / 2 + 5;
  const lines = queries.flatMap((_, query) =>
    keys.flatMap((_, key) => {
      const weight = binAt(key + 0.5, query + 0.5)?.value ?? 0;
      if (weight < MIN_WEIGHT) return [];
      const path = `M${LEFT + 6} ${y(query)} C${LEFT + 90} ${y(query)} ${RIGHT - 90} ${y(key)} ${RIGHT - 6} ${y(key)}`;
      const opacity = Math.min(1, state.cell?.query === query ? 0.25 + weight : 0.55 * weight);
      return [draw("path", { d: path, "stroke-width": (0.5 + 5 * weight).toFixed(2), "stroke-opacity": opacity.toFixed(3) })];
    }),
  );
  const words = [...queries.map((text, index) => word("query", index, text, y(index))), ...keys.map((text, index) => word("key", index, text, y(index)))];
  const focused = [...document.querySelectorAll("#lines text")].indexOf(/** @type {Element} */ (document.activeElement));
  const height = STEP * Math.max(queries.length, keys.length) + 10;
  const label = "Queries on the left, keys on the right; thicker lines for larger weights";
  element("lines").replaceChildren(draw("svg", { viewBox: `0 0 640 ${height}`, role: "group", "aria-label": label }, ...lines, ...words));
  if (focused >= 0) /** @type {SVGElement[]} */ ([...document.querySelectorAll("#lines text")])[focused]?.focus();
}

/** @param {"query" | "key"} side @param {number} index @param {string} text @param {number} y */
function word(side, index, text, y) {
  const isChosen = index === state.cell?.[side];
  const clipped = text.length > 24 ? `${text.slice(0, 23)}…` : text;
  const shown = draw(
    "text",
    {
      x: side === "query" ? LEFT : RIGHT, y, "text-anchor": side === "query" ? "end" : "start", "dominant-baseline": "middle",
      class: isChosen ? "chosen" : "", tabindex: 0, role: "button", "aria-label": `${side} ${text}`, "unicode-bidi": "isolate",
    },
    clipped,
  );
  shown.addEventListener("click", () => pointAtToken(side, index));
  shown.addEventListener("keydown", (event) => {
    if (!["Enter", " "].includes(event.key)) return;
    event.preventDefault();
    pointAtToken(side, index);
  });
  return shown;
}

/** Show the keys of the window, shaded by their weight for the selected query. */
export function showStrip() {
  const { row, start } = state.cell ?? {};
  const { keys, key } = state.tokens ?? { keys: [], key: 0 };
  if (!keys.length || !row || start !== key) {
    const note = keys.length ? "" : "Zoom in to 512 keys or fewer to read the text here.";
    element("lines").replaceChildren(make("p", { className: "quiet", textContent: note }));
    return;
  }
  const most = Math.max(...Array.from(row), 1e-9);
  const words = keys.map((text, offset) => {
    const index = key + offset;
    const token = make("button", { type: "button", className: index === state.cell?.key ? "tok chosen" : "tok", title: `key ${index}, weight ${significant(row[offset])}` }, literal(text));
    token.style.setProperty("--share", (row[offset] / most).toFixed(3));
    token.addEventListener("click", () => pointAtToken("key", index));
    return token;
  });
  element("lines").replaceChildren(make("div", { className: "strip", role: "group", ariaLabel: "Keys of the window, shaded by weight" }, ...words));
}
