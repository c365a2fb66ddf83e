// Search and strongest links in a report, from its stored tokens and rows.

import { announce, stackShown, state } from "clearhead/state.js";
import { findText } from "clearhead/search_text.js";
import { largestWeights, searchableTokens, storedLayer, textsOf } from "clearhead/stored.js";

const MAX_LINKS = 20;
const KEYS_OF_A_HEAD = 5;

/** @param {{ axis: "queries" | "keys", text: string }} request */
export function answerSearch({ axis, text }) {
  const stack = /** @type {StoredStack} */ (stackShown());
  state.search = { stack: stack.name, axis, text, ...findText(searchableTokens(stack, axis), text) };
  announce("search");
}

/** Answer the strongest links of the last query, as `_token_links.py` does. @param {{ min_distance: number }} request */
export async function answerLinks({ min_distance: minimum }) {
  const stack = /** @type {StoredStack} */ (stackShown());
  const layers = await Promise.all(stack.heads.map((_, layer) => storedLayer(stack.name, layer)));
  const hidden = new Set(stack.hidden);
  const last = stack.queries - 1;
  let query = last;
  const links = layers.flatMap((heads, layer) =>
    heads.flatMap((stored, head) => {
      const row = largestWeights(stored, stack, last);
      query = row.query;
      const isShown = (/** @type {TopToken} */ [key]) => !hidden.has(key) && !(stack.same && Math.abs(query - key) < minimum);
      return row.tops.filter(isShown).slice(0, KEYS_OF_A_HEAD)
        .map(([key, token, weight]) => ({ layer, head, key, token, weight, distance: stack.same ? query - key : null }));
    }),
  );
  links.sort((one, other) => other.weight - one.weight);
  state.links = { stack: stack.name, query, token: textsOf(stack, "query")[query], hide: true, links: links.slice(0, MAX_LINKS) };
  announce("links");
}
