// One token: the keys it attends to and the queries that attend to it, as lists of all heads.

import { element, literal, make, rowLabel } from "clearhead/dom.js";
import { clamp, fixed, headId, significant } from "clearhead/format.js";
import { languageOf, on, openHead, state } from "clearhead/state.js";

function showTopTokens() {
  if (!state.top_tokens) return;
  const { from, to, query, written, key, nearest } = state.top_tokens;
  const stored = nearest === undefined ? "" : ` (query ${nearest.toLocaleString("en")}, the nearest that is stored)`;
  element("from-heading").replaceChildren(rowLabel(query, written, languageOf("query")), `${stored} attends to`);
  element("to-heading").replaceChildren(literal(key, languageOf("key")), " receives attention from");
  element("from").replaceChildren(listOf(from, "key"));
  element("to").closest("div").parentElement.hidden = !to;
  if (to) element("to").replaceChildren(listOf(to, "query"));
}

/** @param {TopTokens} top @param {string} side */
function listOf(top, side) {
  const stack = state.head?.stack ?? "";
  const rows = top.heads.map(([layer, head, tokens]) => {
    const button = make("button", { type: "button", className: "place", textContent: `layer ${layer}, head ${head}` });
    button.addEventListener("click", () => openHead(headId({ stack, layer, head })));
    const isShown = layer === state.head?.layer && head === state.head?.head;
    return make("tr", { className: isShown ? "chosen" : "" }, make("th", { scope: "row" }, button), tokenCell(tokens, side));
  });
  const mean = top.everywhere && make("tr", {}, make("th", { scope: "row", textContent: "mean of all heads" }), tokenCell(top.everywhere, side));
  return make("tbody", {}, mean, ...rows);
}

/** @param {TopToken[]} tokens @param {string} side */
function tokenCell(tokens, side) {
  const chips = tokens.map(([index, text, weight]) => {
    const chip = make("span", { className: "key", title: `${side} ${index}: ${significant(weight)}` }, literal(text), ` ${fixed(weight)}`);
    chip.style.setProperty("--share", clamp(weight, 0, 1).toFixed(3));
    return chip;
  });
  return make("td", {}, ...chips);
}

on("top_tokens", showTopTokens);
