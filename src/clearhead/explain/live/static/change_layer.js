// Changes of a layer. Each function returns a new layer with valid shapes, or throws a LayerError whose message is for the
// reader (`attempt` turns it into a message). The functions on tokens and heads are in change_tokens.js and change_heads.js.
import { layerInput, tokenRows } from "clearhead/input_steps.js";
import { checkedValue, LayerError } from "clearhead/layer_limits.js";
import { hiddenCells, sinusoidal } from "clearhead/matrix_math.js";
import { fitKeyRows } from "clearhead/change_heads.js";

export { possibleHeads, possibleKeyHeads, setHeads, setKeyHeads, setSplit, splitReason } from "clearhead/change_heads.js";
export { drawnRow, setTokens } from "clearhead/change_tokens.js";
export { attempt, LayerError } from "clearhead/layer_limits.js";

/** @param {Layer} layer @returns {number} */
const keyCount = (layer) => (layer.memory ?? layer).tokens.length;

/**
 * Return the rows that a path of a Matrix leads to: those of a matrix, or the only row of a bias; null without such a matrix.
 * @param {Layer} layer @param {CellPath} path @returns {any[][] | null}
 */
export function cellsAt(layer, path) {
  let part = /** @type {any} */ (layer);
  for (const key of path) {
    if (part === null || typeof part !== "object" || !Object.hasOwn(part, key)) return null;
    part = part[key];
  }
  return Array.isArray(part?.[0]) ? part : [part];
}

/**
 * Write one cell. A link can have any row and column, such as "__proto__", which would change all lists of the page.
 * @param {any[][] | null} cells @param {any} row @param {any} column @param {any} value
 */
export function writeCell(cells, row, column, value) {
  const isCell = Number.isInteger(row) && Number.isInteger(column) && typeof cells?.[row]?.[column] === "number";
  if (!cells || !isCell) throw new LayerError(`there is no cell in row ${row + 1} and column ${column + 1}`);
  cells[row][column] = checkedValue("the cell", value);
}

/**
 * Set one cell of X, a weight matrix, a bias, positions, an embedding table, or the mask (0: visible, −∞: hidden).
 * @param {Layer} layer @param {CellPath} path of the matrix @param {number} row @param {number} column @param {number} value
 * @returns {Layer}
 */
export function setCell(layer, path, row, column, value) {
  if (path[0] === "mask") {
    if (value !== 0 && value !== -Infinity) throw new LayerError(`a cell of M is ${value}; expected 0 or −∞`);
    return (hiddenCells(layer)?.[row][column] ?? false) === (value !== 0) ? layer : toggleMaskCell(layer, row, column);
  }
  const changed = structuredClone(layer);
  writeCell(cellsAt(changed, path), row, column, value);
  if (path[0] === "positions" && changed.positions) changed.positions.sinusoidal = false;
  changed.x = tokenRows(changed);
  return changed;
}

/**
 * Choose a mask. A custom one starts with the cells that are hidden now.
 * @param {Layer} layer @param {Mask["kind"]} kind @param {number} [padding] number of last keys that padding hides
 * @returns {Layer}
 */
export function setMask(layer, kind, padding = layer.mask.padding || 1) {
  const keys = keyCount(layer);
  if (kind === "causal" && layer.memory) {
    throw new LayerError("the mask is causal, but the keys are of another text; expected none, padding or custom cells");
  }
  if (kind === "padding" && !(Number.isInteger(padding) && padding >= 0 && padding <= keys)) {
    throw new LayerError(`the padding is ${padding}; expected 0 to ${keys} keys`);
  }
  const visible = layer.tokens.map(() => Array(keys).fill(false));
  const hidden = kind === "custom" ? structuredClone(hiddenCells(layer) ?? visible) : null;
  return { ...layer, mask: { kind, padding: kind === "padding" ? padding : 0, hidden } };
}

/** Hide or show one key of one query. The mask becomes a custom one. @param {Layer} layer @param {number} row @param {number} column */
export function toggleMaskCell(layer, row, column) {
  const changed = setMask(layer, "custom");
  const cells = /** @type {boolean[][]} */ (changed.mask.hidden);
  if (cells[row]?.[column] === undefined) throw new LayerError(`M has no cell in row ${row + 1} and column ${column + 1}`);
  cells[row][column] = !cells[row][column];
  return changed;
}

/**
 * Switch scaling on or off. Without a scale, scores are divided by √d_k; a d_k that the text states is kept.
 * @param {Layer} layer @param {boolean} on @param {number | null} [scale] @returns {Layer}
 */
export function setScaling(layer, on, scale = null) {
  if (scale !== null && !(checkedValue("the scale", scale) > 0)) throw new LayerError(`the scale is ${scale}; expected more than 0`);
  return { ...layer, scaling: { on, scale, d_k: scale === null ? (layer.scaling.d_k ?? null) : null } };
}

/** @param {Layer} layer @param {Layer["softmax"]} softmax @returns {Layer} */
export const setSoftmax = (layer, softmax) => ({ ...layer, softmax });

/** @param {Layer} layer @param {boolean} on @returns {Layer} with W_O, or with Y = C */
export const useOutput = (layer, on) => ({ ...layer, use_output: on });

/** Compute Q, K and V that the text gives. @param {Layer} layer @returns {Layer} */
export const dropGiven = (layer) => ({ ...layer, given: {} });

/** Add positions to the rows of the tokens, or not: sines and cosines, if there are none yet. @param {Layer} layer @param {boolean} on */
export function setPositions(layer, on) {
  const values = sinusoidal(layer.tokens.length, layer.x[0].length);
  return { ...layer, positions: { ...(layer.positions ?? { values, sinusoidal: true }), on } };
}

/**
 * Choose cross-attention, whose memory starts as a copy of X, or self-attention. Without memory, W_K and W_V get as many
 * rows as X has columns: further rows are removed, missing ones are 0.
 * @param {Layer} layer @param {boolean} on @returns {Layer}
 */
export function setCross(layer, on) {
  if (on === (layer.memory !== null)) return layer;
  if (on) {
    const memory = { tokens: [...layer.tokens], x: structuredClone(layerInput(layer)) };
    const mask = layer.mask.kind === "causal" ? /** @type {Mask} */ ({ kind: "none", padding: 0, hidden: null }) : layer.mask;
    return { ...layer, memory, mask };
  }
  const sameCount = keyCount(layer) === layer.tokens.length;
  const changed = fitKeyRows({ ...layer, memory: null });
  changed.mask = structuredClone(layer.mask);
  changed.mask.padding = Math.min(layer.mask.padding, layer.tokens.length);
  if (sameCount) return changed;
  if (changed.mask.kind === "custom") changed.mask = { kind: "none", padding: 0, hidden: null };
  changed.given = Object.fromEntries(Object.entries(layer.given ?? {}).filter(([id]) => id.startsWith("query")));
  return changed;
}
