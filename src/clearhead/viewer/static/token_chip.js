// Tokens of lists as chips: a visible leading space, the position in the text, the weight.

import { literal, make, reveal } from "clearhead/dom.js";
import { clamp, significant, weightText } from "clearhead/format.js";
import { ask, openHead, stackShown, state, windowShown } from "clearhead/state.js";

const SPACE = "␣"; // stands for a leading space

/** Return a token whose leading spaces are visible. @param {string} text */
export function visibleToken(text) {
  const [spaces] = /^ */.exec(text) ?? [""];
  if (!spaces) return literal(text);
  const shown = literal("");
  shown.append(make("span", { className: "space", textContent: SPACE.repeat(spaces.length) }), text.slice(spaces.length));
  return shown;
}

/**
 * Return a token with its position and weight, as a button.
 * @param {TopToken} token
 * @param {string} side of the token, such as "key"
 * @param {() => void} open
 * @param {string} [measure] what its number is
 */
export function tokenChip([index, text, weight], side, open, measure = "weight") {
  const position = make("sub", { textContent: index });
  const chip = make("button", { type: "button", className: "key", tabIndex: -1 }, visibleToken(text), position, ` ${weightText(weight)}`);
  chip.title = `Open ${side} ${index.toLocaleString("en")}, ${measure} ${significant(weight)}`;
  chip.style.setProperty("--share", clamp(weight, 0, 1).toFixed(3));
  chip.addEventListener("click", open);
  return chip;
}

/** Open a cell of a head. The window stays, unless the cell is outside. @param {string} head @param {number} query @param {number} key */
export function openCell(head, query, key) {
  const [row, rowEnd, first, keyEnd] = windowShown();
  const isInside = query >= row && query < rowEnd && key >= first && key < keyEnd;
  const isSameStack = head.startsWith(`${state.head?.stack}.`);
  reveal("head");
  openHead(head, { cursor: [query, key], ...(isInside && isSameStack ? { rows: [row, rowEnd], keys: [first, keyEnd] } : {}) });
}

/** Select a cell of the shown head. @param {number} query @param {number} key */
export function selectCell(query, key) {
  const { queries, keys } = stackShown();
  const [row, rowEnd, first, keyEnd] = windowShown();
  if (query < row || query >= rowEnd || key < first || key >= keyEnd) ask("window", { rows: [0, queries], keys: [0, keys] });
  reveal("head");
  ask("cursor", { query, key });
}

