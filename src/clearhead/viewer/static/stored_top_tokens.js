// Top tokens of a cell in every head of a report, from the stored weights and with the page's settings.

import { largestWeights, optionsFor, shownTops, textsOf } from "clearhead/stored.js";

const MAX_TOP_TOKENS = 5; // of a head

/**
 * Return the keys that a query attends to most, and the queries that attend most to a key, in every head.
 * @param {import("clearhead/stored.js").StoredHead[][]} layers
 * @param {StoredStack} stack
 * @param {{ query: number, key: number }} cell
 * @returns {TopTokensPayload}
 */
export function topTokensOf(layers, stack, { query, key }) {
  const { hide, weighted } = optionsFor(stack);
  const heads = layers.flatMap((stored, layer) => stored.map((data, head) => ({ layer, head, data })));
  const texts = { query: textsOf(stack, "query"), key: textsOf(stack, "key") };
  const written = textsOf(stack, "written");
  const listed = largestWeights(layers[0][0], stack, query).query;
  /** @param {(data: any) => TopToken[]} tokensOf @returns {TopTokens["heads"]} */
  const ofHeads = (tokensOf) => strongestFirst(heads.map(({ layer, head, data }) => [layer, head, tokensOf(data)]));
  /** @type {TopTokensPayload} */
  const answer = {
    query: texts.query[listed], written: written?.[listed] ?? "", key: texts.key[key], cell: [query, key], nearest: listed === query ? undefined : listed,
    same: stack.same, hide, weighted, from: { heads: [] },
  };
  if (!stack.cells) {
    answer.from.heads = ofHeads((data) => shownTops(data, stack, query).tops.slice(0, MAX_TOP_TOKENS));
    return weighted ? { ...answer, among: stack.top } : answer;
  }
  const matrices = new Map(heads.map(({ data }) => [data, data.values("max", { hide: false, weighted })]));
  const hidden = new Set(hide ? stack.hidden : []);
  const row = (/** @type {any} */ data) => Array.from(matrices.get(data)?.subarray(query * stack.keys, (query + 1) * stack.keys) ?? [], (weight, index) => (hidden.has(index) ? 0 : weight));
  const column = (/** @type {any} */ data) => Array.from({ length: stack.queries }, (_, index) => matrices.get(data)?.[index * stack.keys + key] ?? 0);
  const rows = texts.query.map((read, index) => (written?.[index] ? `${read} → ${written[index]}` : read));
  answer.from.heads = ofHeads((data) => largest(row(data), texts.key));
  answer.to = { heads: ofHeads((data) => largest(column(data), rows)) };
  if (weighted) return answer; // heads have different units
  answer.from.everywhere = largest(mean(heads.map(({ data }) => row(data))), texts.key);
  answer.to.everywhere = largest(mean(heads.map(({ data }) => column(data))), rows);
  return answer;
}

/** @param {TopTokens["heads"]} heads */
const strongestFirst = (heads) => heads.sort(([, , one], [, , other]) => (other[0]?.[2] ?? 0) - (one[0]?.[2] ?? 0));
/** @param {number[][]} lines */
const mean = (lines) => lines[0].map((_, index) => lines.reduce((sum, line) => sum + line[index], 0) / lines.length);
/** @param {number[]} weights @param {string[]} texts @returns {TopToken[]} */
const largest = (weights, texts) =>
  weights.map((weight, index) => /** @type {TopToken} */ ([index, texts[index], weight])).filter(([, , weight]) => weight > 0).sort((one, other) => other[2] - one[2]).slice(0, MAX_TOP_TOKENS);
