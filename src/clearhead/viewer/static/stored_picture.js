// The picture of one token in a report, from the stored weights.

import { largestWeights, optionsFor, shownTops, storedLayer, textsOf } from "clearhead/stored.js";

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
  /** Return the weight on the key, also if it is a hidden sink. @param {import("clearhead/stored.js").StoredHead} data */
  const weightOn = (data) => {
    if (stack.cells) return data.values("max", { ...options, hide: false })[query * stack.keys + key];
    const weight = largestWeights(data, stack, asked).tops.find(([index]) => index === key)?.[2] ?? 0;
    return options.weighted ? weight * (data.shares()?.[key] ?? 1) : weight;
  };
  return {
    stack: stack.name,
    query,
    token: textsOf(stack, "query")[query],
    key,
    key_token: textsOf(stack, "key")[key],
    ...options,
    layers: rows.map((heads) => heads.map(({ tops }) => tops[0] ?? null)),
    weights: rows.map((heads, layer) => heads.map((_, head) => weightOn(layers[layer][head]))),
  };
}
