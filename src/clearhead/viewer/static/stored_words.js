// Words of a report: tokens around the selected cell and the stored weights between them, for all heads of a layer.

import { state } from "clearhead/state.js";
import { largestWeights, optionsFor, textsOf } from "clearhead/stored.js";

// as in `_words_payload.py`
const MAX_WHOLE_TOKENS = 48;
const WINDOW_TOKENS = 20;
const WINDOW_STEP = 8;
const MAX_DISTANT_KEYS = 6;

/**
 * Return the tokens of one side: all of them, the heatmap's window, or the surroundings of a token.
 * @param {number} length
 * @param {number[]} window
 * @param {number} center
 */
function side(length, [start, end], center) {
  const range = (/** @type {number} */ first, /** @type {number} */ last) => Array.from({ length: last - first }, (_, offset) => first + offset);
  if (length <= MAX_WHOLE_TOKENS) return range(0, length);
  if (end - start <= MAX_WHOLE_TOKENS && start <= center && center < end) return range(start, end);
  const first = Math.min(Math.max(0, Math.floor(center / WINDOW_STEP) * WINDOW_STEP - (WINDOW_TOKENS - WINDOW_STEP) / 2), length - WINDOW_TOKENS);
  return range(first, first + WINDOW_TOKENS);
}

/** @typedef {import("clearhead/stored.js").StoredHead} StoredHead */

/** Matrices of heads of a short text. @type {WeakMap<StoredHead, Float32Array>} */
const matrices = new WeakMap();

/** Return the stored weights of a query by key. @param {StoredHead} head @param {StoredStack} stack @param {number} query */
export function storedRow(head, stack, query) {
  if (!stack.cells) return new Map(largestWeights(head, stack, query).tops.map(([key, , weight]) => [key, weight]));
  const matrix = matrices.get(head) ?? head.values("max");
  matrices.set(head, matrix);
  return new Map(Array.from(matrix.subarray(query * stack.keys, (query + 1) * stack.keys), (weight, key) => [key, weight]));
}

/**
 * Return the words around a cell, or the shown words if they stay the same. Queries of a long text are those that are stored.
 * @param {StoredHead[]} heads heads of the layer
 * @param {StoredStack} stack
 * @param {number} layer
 * @param {{ query: number, key: number }} cell
 * @returns {WordsPayload}
 */
export function storedWords(heads, stack, layer, { query, key }) {
  const [row, rowEnd, first, end] = state.tokens?.window ?? [0, stack.queries, 0, stack.keys];
  const { places } = stack;
  const nearest = places ? largestWeights(heads[0], stack, query).query : query;
  let queries = side(stack.queries, [row, rowEnd], nearest);
  if (places) {
    const middle = places.indexOf(nearest);
    queries = places.slice(Math.max(0, middle - WINDOW_TOKENS / 2), middle + WINDOW_TOKENS / 2);
  }
  const keys = new Set(side(stack.keys, [first, end], stack.same ? nearest : key));
  /** @type {Map<number, number>} */
  const strengths = new Map();
  for (const head of heads) {
    for (const [index, weight] of storedRow(head, stack, nearest)) strengths.set(index, Math.max(weight, strengths.get(index) ?? 0));
  }
  const hidden = new Set(optionsFor(stack).hide ? stack.hidden : []);
  const distant = [...strengths].filter(([index, weight]) => weight > 0 && !keys.has(index) && !hidden.has(index)).sort(([, one], [, other]) => other - one);
  for (const [index] of distant.slice(0, MAX_DISTANT_KEYS)) keys.add(index);
  const columns = [...keys].sort((one, other) => one - other);
  const { words } = state;
  if (words?.stack === stack.name && words.layer === layer && String(words.queries) === String(queries) && String(words.keys) === String(columns)) return words;
  const weights = heads.flatMap((head) => queries.flatMap((index) => {
    const stored = storedRow(head, stack, index);
    return columns.map((column) => stored.get(column) ?? 0);
  }));
  const shares = stack.value_weighted ? heads.map((head) => head.shares()).flatMap((each) => columns.map((column) => each?.[column] ?? 1)) : null;
  const written = textsOf(stack, "written");
  return {
    stack: stack.name, layer, heads: heads.length, queries, query_tokens: queries.map((index) => textsOf(stack, "query")[index]),
    written: written && queries.map((index) => written[index]), keys: columns, key_tokens: columns.map((index) => textsOf(stack, "key")[index]), weights, shares,
  };
}
