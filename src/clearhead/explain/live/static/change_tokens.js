// Change of the tokens of a layer: typed words replace those of the queries or of the memory.
import { tokenRows } from "clearhead/input_steps.js";
import { checkedWords, MAX_VOCABULARY } from "clearhead/layer_limits.js";
import { sinusoidal } from "clearhead/matrix_math.js";

const GOLDEN_RATIO = 0x9e3779b9; // of 2³²; spreads the states of neighboring columns

/**
 * Return the row of a new word: numbers from −1.0 to 1.0 in steps of 0.1 that depend only on the word and the column.
 * The FNV-1a hash of the word's UTF-16 units is the start; the finalizer of MurmurHash3 mixes it with the column.
 * @param {string} word @param {number} width @returns {number[]}
 */
export function drawnRow(word, width) {
  let hash = 0x811c9dc5;
  for (let index = 0; index < word.length; index++) hash = Math.imul(hash ^ word.charCodeAt(index), 0x01000193);
  return Array.from({ length: width }, (_, column) => {
    let state = hash + Math.imul(column + 1, GOLDEN_RATIO);
    state = Math.imul(state ^ (state >>> 16), 0x85ebca6b);
    state = Math.imul(state ^ (state >>> 13), 0xc2b2ae35);
    return (((state ^ (state >>> 16)) >>> 0) % 21) / 10 - 1;
  }).map((value) => Math.round(value * 10) / 10 + 0);
}

/**
 * Return for each new word the old position of its row: the same position, else the first unused one of this word, else a
 * used one of this word. −1 stands for a new word.
 * @param {string[]} before @param {string[]} words @returns {number[]}
 */
function oldPositions(before, words) {
  const positions = words.map((word, index) => (before[index] === word ? index : -1));
  const used = new Set(positions);
  return words.map((word, index) => {
    if (positions[index] >= 0) return positions[index];
    const unused = before.findIndex((other, position) => other === word && !used.has(position));
    used.add(unused);
    return unused >= 0 ? unused : before.indexOf(word);
  });
}

/** @template T @param {T[]} rows @param {number[]} positions @param {(index: number) => T} create @returns {T[]} */
const moved = (rows, positions, create) =>
  positions.map((position, index) => (position < 0 ? create(index) : structuredClone(rows[position])));

/**
 * Replace the tokens of the queries, or those of the memory in cross-attention. Words that stay keep their rows, with
 * their cells of a custom mask and their rows of given matrices. A new word gets the row of `drawnRow`.
 * @param {Layer} layer @param {string[]} words @param {"query" | "key"} [side] @returns {Layer}
 */
export function setTokens(layer, words, side = "query") {
  const tokens = checkedWords(words);
  const changed = structuredClone(layer);
  const target = side === "key" && changed.memory ? changed.memory : changed;
  const positions = oldPositions(target.tokens, tokens);
  const width = target.x[0].length;
  if (target === changed && changed.embedding) {
    extendVocabulary(changed.embedding, tokens, width);
  } else {
    target.x = moved(target.x, positions, (index) => drawnRow(tokens[index], width));
  }
  target.tokens = tokens;
  changed.x = tokenRows(changed);
  const isQuery = target === changed;
  const isKey = !isQuery || !changed.memory;
  adaptMask(changed, positions, isQuery, isKey);
  adaptGiven(changed, positions, isQuery, isKey);
  if (isQuery && changed.positions) {
    const further = sinusoidal(tokens.length, width);
    changed.positions.values = further.map((row, position) => changed.positions?.values[position] ?? row);
  }
  return changed;
}

/**
 * Add rows of new words. Unused words of a full table are removed, the last ones first.
 * @param {Embedding} embedding @param {string[]} tokens @param {number} width
 */
function extendVocabulary(embedding, tokens, width) {
  for (const word of new Set(tokens)) {
    if (embedding.vocabulary.includes(word)) continue;
    embedding.vocabulary.push(word);
    embedding.values.push(drawnRow(word, width));
  }
  while (embedding.vocabulary.length > MAX_VOCABULARY) {
    const unused = embedding.vocabulary.findLastIndex((word) => !tokens.includes(word));
    embedding.vocabulary.splice(unused, 1);
    embedding.values.splice(unused, 1);
  }
}

/** @param {Layer} layer @param {number[]} positions @param {boolean} isQuery @param {boolean} isKey */
function adaptMask({ mask, ...layer }, positions, isQuery, isKey) {
  mask.padding = Math.min(mask.padding, (layer.memory ?? layer).tokens.length);
  if (!mask.hidden) return;
  const keys = mask.hidden[0].length;
  if (isQuery) mask.hidden = moved(mask.hidden, positions, () => Array(keys).fill(false));
  if (isKey) mask.hidden = mask.hidden.map((row) => moved(row, positions, () => false));
}

/**
 * Move the rows of given matrices. With a new word, which has no given row, the matrix is computed from now on.
 * @param {Layer} layer @param {number[]} positions @param {boolean} isQuery @param {boolean} isKey
 */
function adaptGiven(layer, positions, isQuery, isKey) {
  const entries = Object.entries(layer.given ?? {}).flatMap(([id, rows]) => {
    if (!(id.startsWith("query") ? isQuery : isKey)) return [[id, rows]];
    return positions.includes(-1) ? [] : [[id, moved(rows, positions, () => [])]];
  });
  if (layer.given) layer.given = Object.fromEntries(entries);
}
