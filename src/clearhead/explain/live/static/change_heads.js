// Changes of the heads of a layer. They cut the same matrices in another way, so that one wide head and many narrow ones
// use the same numbers: W_Q, W_K and W_V of all heads side by side are one matrix each.
import { LayerError, MAX_COLUMNS, MAX_HEADS } from "clearhead/layer_limits.js";
import { columnsOf, concatenate, zeros } from "clearhead/matrix_math.js";

/** @typedef {"query" | "key" | "value"} Projection */
const PROJECTIONS = /** @type {Projection[]} */ (["query", "key", "value"]);

/** @param {Layer} layer @param {Projection} name @returns {number} number of columns of the input of Q, K or V */
const inputWidth = (layer, name) => (name === "query" ? layer : (layer.memory ?? layer)).x[0].length;

/** @param {number[][]} values @param {number} count @returns {number[][][]} equally wide parts of a matrix */
function cut(values, count) {
  const width = values[0].length / count;
  return Array.from({ length: count }, (_, index) => columnsOf(values, index * width, (index + 1) * width));
}

/**
 * Return why a split is not possible, or an empty text.
 * @param {Layer} layer @param {Layer["split"]} split @param {number} [heads] @param {number} [kvHeads] @returns {string}
 */
export function splitReason(layer, split, heads = layer.heads, kvHeads = layer.kv_heads) {
  if (split === "project") return "";
  for (const [name, count] of /** @type {[Projection, number][]} */ ([["query", heads], ["key", kvHeads]])) {
    const width = inputWidth(layer, name);
    if (width % count) return `${name === "query" || !layer.memory ? "X" : "Z"} has ${width} columns; ${count} heads cannot slice them equally`;
  }
  return "";
}

/**
 * Choose whether each head projects all columns or its slice. From slices to projections, W becomes block-diagonal, which
 * is the same calculation. The other way keeps only the blocks of each head's slice.
 * @param {Layer} layer @param {Layer["split"]} split @returns {Layer}
 */
export function setSplit(layer, split) {
  if (layer.split === split) return layer;
  const reason = splitReason(layer, split);
  if (reason) throw new LayerError(reason);
  const changed = { ...structuredClone(layer), split };
  for (const name of PROJECTIONS) {
    const whole = inputWidth(layer, name);
    changed.weights[name] = layer.weights[name].map((block, index, all) => {
      const rows = whole / all.length;
      const first = index * rows;
      if (split === "slice") return block.slice(first, first + rows);
      return [...zeros(first, block[0].length), ...block, ...zeros(whole - first - rows, block[0].length)];
    });
  }
  return changed;
}

/**
 * Apply a change of whole matrices to a layer, in whose slices each head has a diagonal block.
 * @param {Layer} layer @param {(projected: Layer) => void} change @returns {Layer}
 */
function withProjections(layer, change) {
  const projected = structuredClone(setSplit(layer, "project"));
  change(projected);
  return setSplit(projected, layer.split);
}

/** @param {Layer} layer @param {number} heads @returns {number} number of key heads that goes with a number of heads */
function keyHeadsFor(layer, heads) {
  const group = layer.heads / layer.kv_heads;
  return heads % group ? heads : heads / group;
}

/** @param {Layer} layer @returns {number[]} numbers of heads that divide the columns of Q, K, V and, for slices, of X */
export function possibleHeads(layer) {
  const [keyWidth, valueWidth] = [layer.weights.query, layer.weights.value].map((matrices) => matrices[0][0].length * layer.heads);
  return Array.from({ length: MAX_HEADS }, (_, index) => index + 1).filter(
    (heads) =>
      keyWidth % heads === 0 &&
      valueWidth % heads === 0 &&
      Math.max(keyWidth, valueWidth) / heads <= MAX_COLUMNS &&
      !splitReason(layer, layer.split, heads, keyHeadsFor(layer, heads)) &&
      (heads % (layer.heads / layer.kv_heads) === 0 || !splitReason(layer, layer.split, layer.heads, layer.heads)),
  );
}

/** @param {Layer} layer @returns {number[]} divisors of the number of heads, which are possible numbers of key heads */
export const possibleKeyHeads = (layer) =>
  Array.from({ length: layer.heads }, (_, index) => index + 1).filter(
    (count) => layer.heads % count === 0 && !splitReason(layer, layer.split, layer.heads, count),
  );

/**
 * Cut Q, K and V into another number of heads. Head h gets the columns of W from h · d_k on. Groups of heads that share
 * keys stay as large; if the number of heads is not a multiple of them, each head gets a copy of its keys.
 * @param {Layer} layer @param {number} heads @returns {Layer}
 */
export function setHeads(layer, heads) {
  const possible = possibleHeads(layer);
  if (!possible.includes(heads)) throw new LayerError(`the number of heads is ${heads}; expected one of ${possible.join(", ")}`);
  const kvHeads = keyHeadsFor(layer, heads);
  const source = heads % (layer.heads / layer.kv_heads) ? setKeyHeads(layer, layer.heads) : layer;
  return withProjections(source, (projected) => {
    projected.heads = heads;
    projected.kv_heads = kvHeads;
    for (const name of PROJECTIONS) {
      const count = name === "query" ? heads : kvHeads;
      projected.weights[name] = cut(concatenate(projected.weights[name]), count);
      const bias = projected.biases[name];
      if (bias) projected.biases[name] = cut([bias.flat()], count).map(([row]) => row);
    }
    projected.given = cutGiven(source, heads, kvHeads);
  });
}

/** @param {Layer} layer @param {number} heads @param {number} kvHeads @returns {Record<string, number[][]>} */
function cutGiven({ given, heads: oldHeads, kv_heads: oldKeyHeads }, heads, kvHeads) {
  return Object.fromEntries(
    PROJECTIONS.flatMap((name) => {
      const [before, after] = name === "query" ? [oldHeads, heads] : [oldKeyHeads, kvHeads];
      const parts = Array.from({ length: before }, (_, index) => given?.[`${name}-${index + 1}`]);
      if (parts.includes(undefined)) return []; // a part of a matrix cannot be cut
      const whole = concatenate(/** @type {number[][][]} */ (parts));
      return cut(whole, after).map((part, index) => [`${name}-${index + 1}`, part]);
    }),
  );
}

/**
 * Let groups of heads share keys and values. More key heads are copies, which with projections is the same calculation;
 * fewer key heads are the first of each group.
 * @param {Layer} layer @param {number} kvHeads @returns {Layer}
 */
export function setKeyHeads(layer, kvHeads) {
  const possible = possibleKeyHeads(layer);
  if (!possible.includes(kvHeads)) throw new LayerError(`the number of key heads is ${kvHeads}; expected one of ${possible.join(", ")}`);
  // key head that the first query head of each new key head uses
  const sources = Array.from({ length: kvHeads }, (_, index) => Math.floor((index * layer.kv_heads) / kvHeads));
  return withProjections(layer, (projected) => {
    projected.kv_heads = kvHeads;
    for (const name of /** @type {Projection[]} */ (["key", "value"])) {
      const { weights, biases, given } = projected;
      weights[name] = sources.map((source) => structuredClone(weights[name][source]));
      const bias = biases[name];
      if (bias) biases[name] = sources.map((source) => [...bias[source]]);
      const parts = sources.map((source) => given?.[`${name}-${source + 1}`]);
      const others = Object.entries(given ?? {}).filter(([id]) => !id.startsWith(name));
      const entries = parts.flatMap((part, index) => (part ? [[`${name}-${index + 1}`, structuredClone(part)]] : []));
      projected.given = Object.fromEntries([...others, ...entries]);
    }
  });
}

/** Give W_K and W_V as many rows as their input has columns. @param {Layer} layer @returns {Layer} */
export function fitKeyRows(layer) {
  const rows = inputWidth(layer, "key");
  const changed = structuredClone(layer);
  for (const name of /** @type {Projection[]} */ (["key", "value"])) {
    const needed = layer.split === "slice" ? rows / layer.kv_heads : rows;
    changed.weights[name] = layer.weights[name].map((matrix) =>
      [...matrix, ...zeros(needed, matrix[0].length)].slice(0, needed).map((row) => [...row]),
    );
  }
  return changed;
}
