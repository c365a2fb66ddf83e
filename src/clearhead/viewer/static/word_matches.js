// Hits of the search among the words and in the strip. Imports the parts that draw them, so that it runs after them.

import "clearhead/word_strip.js";
import "clearhead/words.js";
import { on, state } from "clearhead/state.js";
import { buttons, indexOf } from "clearhead/word_lines.js";

/** @param {"query" | "key"} side @param {number} index */
function isMatch(side, index) {
  const { search, head } = state;
  if (!search || search.stack !== head?.stack || search.axis !== (side === "query" ? "queries" : "keys")) return false;
  return search.ranges.some(([start, end]) => index >= start && index < end);
}

function markMatches() {
  for (const side of /** @type {const} */ (["query", "key"])) {
    buttons[side].forEach((button, position) => button.classList.toggle("match", isMatch(side, indexOf(side, position))));
  }
  const first = state.tokens?.key ?? 0;
  document.querySelectorAll("#strip .strip .tok").forEach((token, offset) => token.classList.toggle("match", isMatch("key", first + offset)));
}

for (const event of ["search", "head", "words", "tokens", "cell", "row", "settings"]) on(event, markMatches);
