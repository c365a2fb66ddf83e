// The picture of one token in a report, from the stored weights.

import { optionsFor, shownTops, storedLayer, textsOf } from "clearhead/stored.js";

/**
 * Return the top key of a query in every head, and its weights on one key.
 * @param {StoredStack} stack @param {number} asked @param {number} key
 * @returns {Promise<TokenPicturePayload>}
 */
export async function storedPicture(stack, asked, key) {
  const layers = await Promise.all(stack.heads.map((_, layer) => storedLayer(stack.name, layer)));
  const options = optionsFor(stack);
  const rows = layers.map((heads) => heads.map((data) => shownTops(data, stack, asked)));
  const query = rows[0][0].query; // the nearest that is stored
  const weightOn = (/** @type {any} */ data, /** @type {TopToken[]} */ tops) =>
    stack.cells ? data.values("max", { ...options, hide: false })[query * stack.keys + key] : (tops.find(([index]) => index === key)?.[2] ?? 0);
  return {
    stack: stack.name,
    query,
    token: textsOf(stack, "query")[query],
    key,
    key_token: textsOf(stack, "key")[key],
    ...options,
    layers: rows.map((heads) => heads.map(({ tops }) => tops[0] ?? null)),
    weights: rows.map((heads, layer) => heads.map(({ tops }, head) => weightOn(layers[layer][head], tops))),
  };
}
