// One token: the keys it attends to and the queries that attend to it, as lists of all heads.

import { element, literal, make, rowLabel } from "clearhead/dom.js";
import { headId } from "clearhead/format.js";
import { measure } from "clearhead/heatmap.js";
import { oneTabStop } from "clearhead/one_tab_stop.js";
import { languageOf, on, openHead, state } from "clearhead/state.js";
import { openCell, selectCell, tokenChip } from "clearhead/token_chip.js";

const fromStop = oneTabStop(element("from"), "button");
const toStop = oneTabStop(element("to"), "button");

function showTopTokens() {
  if (!state.top_tokens) return;
  const { from, to, query, written, key, nearest, hide, weighted, among, cell } = state.top_tokens;
  const stored = nearest === undefined ? "" : ` (query ${nearest.toLocaleString("en")}, the nearest that is stored)`;
  element("from-heading").replaceChildren("What ", rowLabel(query, written, languageOf("query")), `${stored} attends to${hide ? ", without the sink" : ""}${weighted ? `, value-weighted${among ? ` among its ${among} largest weights` : ""}` : ""}`);
  element("to-heading").replaceChildren("What attends to ", literal(key, languageOf("key")), weighted ? ", value-weighted" : "");
  fromStop.update(() => element("from").replaceChildren(listOf(from, "key", (index) => [nearest ?? cell[0], index])));
  element("to").closest("div").parentElement.hidden = !to;
  if (to) toStop.update(() => element("to").replaceChildren(listOf(to, "query", (index) => [index, cell[1]])));
}

/**
 * @param {TopTokens} top
 * @param {string} side of the listed tokens
 * @param {(index: number) => [number, number]} cellOf query and key of a listed token
 */
function listOf(top, side, cellOf) {
  const stack = state.head?.stack ?? "";
  const rows = top.heads.map(([layer, head, tokens]) => {
    const id = headId({ stack, layer, head });
    const button = make("button", { type: "button", className: "place", tabIndex: -1, textContent: `layer ${layer}, head ${head}` });
    button.addEventListener("click", () => openHead(id));
    const chips = tokens.map((token) => tokenChip(token, side, () => openCell(id, ...cellOf(token[0])), measure(state.top_tokens?.weighted)));
    const row = make("tr", {}, make("th", { scope: "row" }, button), make("td", {}, ...chips));
    row.dataset.listed = id;
    return row;
  });
  const means = top.everywhere?.map((token) => tokenChip(token, side, () => selectCell(...cellOf(token[0]))));
  const mean = means && make("tr", {}, make("th", { scope: "row", textContent: "mean of all heads" }), make("td", {}, ...means));
  return make("tbody", {}, mean, ...rows);
}

/** Mark the rows of the shown head. The lists are those of all heads, so another head does not change them. */
function markHead() {
  const shown = state.head && headId(state.head);
  for (const list of [element("from"), element("to")]) {
    for (const row of list.querySelectorAll("[data-listed]")) row.classList.toggle("chosen", row.dataset.listed === shown);
  }
}

on("top_tokens", showTopTokens);
for (const event of ["top_tokens", "head"]) on(event, markHead);
