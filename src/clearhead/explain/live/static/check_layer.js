// Checks of a layer that comes from outside, such as from a link: every value has its type, shape and range.
import { checkedValue, checkedWords, LayerError, MAX_COLUMNS, MAX_HEADS, MAX_VALUE, MAX_VOCABULARY } from "clearhead/layer_limits.js";

/** @typedef {import("clearhead/layer_difference.js").Structure} Structure */

/** @param {boolean} holds @param {string} what */
function require(holds, what) {
  if (!holds) throw new LayerError(`${what} is not valid`);
}

/** @param {any} value @param {number} least @param {number} most */
const isCount = (value, least, most) => Number.isInteger(value) && value >= least && value <= most;

/** @param {any} words @param {number} [most] @returns {boolean} */
const areTexts = (words, most = Infinity) =>
  Array.isArray(words) && words.length <= most && words.every((word) => typeof word === "string");

/** @param {any} value @returns {boolean} */
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** Raise a LayerError unless a value is a Structure. @param {any} structure @returns {asserts structure is Structure} */
export function checkStructure(structure) {
  const { tokens, memory, heads, kv_heads, split, mask, scaling, softmax, use_output, positions, vocabulary, given } = structure;
  require(areTexts(tokens), "the list of tokens");
  checkedWords(tokens);
  require(memory === null || (isObject(memory) && areTexts(memory.tokens) && isCount(memory.width, 1, MAX_COLUMNS)), "the memory");
  if (memory) checkedWords(memory.tokens);
  require(isCount(heads, 1, MAX_HEADS), "the number of heads");
  require(isCount(kv_heads, 1, heads) && heads % kv_heads === 0, "the number of key heads");
  require(split === "slice" || split === "project", "the split");
  require(softmax === "rows" || softmax === "columns", "the axis of softmax");
  require(typeof use_output === "boolean", "the use of W_O");
  const keys = (memory ?? { tokens }).tokens.length;
  checkMask(mask, tokens.length, keys, memory !== null);
  require(isObject(scaling) && typeof scaling.on === "boolean", "the scaling");
  require(scaling.scale === null || (typeof scaling.scale === "number" && scaling.scale > 0 && scaling.scale <= MAX_VALUE), "the scale");
  require(scaling.d_k === null || isCount(scaling.d_k, 1, MAX_VALUE), "d_k");
  const hasPositions = isObject(positions) && typeof positions.on === "boolean" && typeof positions.sinusoidal === "boolean";
  require(positions === null || hasPositions, "the positions");
  require(vocabulary === null || areTexts(vocabulary, MAX_VOCABULARY), "the vocabulary");
  require(areTexts(given, 3 * MAX_HEADS) && given.every((/** @type {string} */ id) => /^(query|key|value)-[1-8]$/.test(id)), "the list of given matrices");
}

/** @param {any} mask @param {number} queries @param {number} keys @param {boolean} isCross */
function checkMask(mask, queries, keys, isCross) {
  require(isObject(mask) && ["none", "causal", "padding", "custom"].includes(mask.kind), "the mask");
  require(isCount(mask.padding, 0, keys) && !(isCross && mask.kind === "causal"), "the mask");
  const rows = mask.hidden;
  if (mask.kind !== "custom") return require(rows === null, "the mask");
  const isRow = (/** @type {any} */ row) => Array.isArray(row) && row.length === keys && row.every((cell) => typeof cell === "boolean");
  require(Array.isArray(rows) && rows.length === queries && rows.every(isRow), "the mask");
}

/** Raise a LayerError unless a matrix has a shape and all of its values are allowed.
 * @param {string} name @param {number[][] | undefined | null} values @param {number} rows @param {number} columns */
function checkMatrix(name, values, rows, columns) {
  require(values?.length === rows && values.every((row) => Array.isArray(row) && row.length === columns), `the shape of ${name}`);
  values?.flat().forEach((value) => checkedValue(`a cell of ${name}`, value));
}

/** Raise a LayerError unless all matrices of a layer fit together. @param {Layer} layer */
export function checkLayer(layer) {
  const { tokens, x, memory, heads, kv_heads, weights, biases, embedding, positions } = layer;
  const width = x[0]?.length;
  const keyWidth = memory ? memory.x[0]?.length : width;
  const keyCount = (memory ?? layer).tokens.length;
  require(isCount(width, 1, MAX_COLUMNS) && isCount(keyWidth, 1, MAX_COLUMNS), "the width of X");
  if (embedding) {
    checkMatrix("W_E", embedding.values, embedding.vocabulary.length, width);
    require(tokens.every((token) => embedding.vocabulary.includes(token)), "the vocabulary");
  } else checkMatrix("X", x, tokens.length, width);
  if (memory) checkMatrix("Z", memory.x, memory.tokens.length, keyWidth);
  if (positions) checkMatrix("P", positions.values, tokens.length, width);
  const [keyDim, valueDim] = [weights.query[0][0].length, weights.value[0][0].length];
  for (const name of /** @type {("query" | "key" | "value")[]} */ (["query", "key", "value"])) {
    const [count, input, rows] = name === "query" ? [heads, width, tokens.length] : [kv_heads, keyWidth, keyCount];
    const columns = name === "value" ? valueDim : keyDim;
    require(weights[name].length === count && columns <= MAX_COLUMNS, `the number of heads of ${name}`);
    require(!biases[name] || biases[name].length === count, `the number of heads of ${name}`);
    weights[name].forEach((matrix) => checkMatrix(`W of ${name}`, matrix, layer.split === "slice" ? input / count : input, columns));
    biases[name]?.forEach((row) => checkMatrix(`b of ${name}`, [row], 1, columns));
    for (const [id, values] of Object.entries(layer.given ?? {})) {
      if (!id.startsWith(name)) continue;
      require(Number(id.split("-")[1]) <= count, `the given ${id}`);
      checkMatrix(`the given ${id}`, values, rows, columns);
    }
  }
  checkMatrix("W_O", weights.output, heads * valueDim, weights.output[0]?.length);
  if (biases.output) checkMatrix("b_O", [biases.output], 1, weights.output[0].length);
}
