// State of a page as text for its address: what differs from the layer that the page starts with.
//
// "1." and a hash of the start layer, then JSON in base64url: s: the parts of the structure that differ, c: cells that
// differ, by path, as row, column, value …, m: matrices of another shape. The number 1 is the version of this format.
import { cellsAt, writeCell } from "clearhead/change_layer.js";
import { checkLayer, checkStructure } from "clearhead/check_layer.js";
import { tokenRows } from "clearhead/input_steps.js";
import { difference, matrixPaths, restructured, structureOf } from "clearhead/layer_difference.js";
import { LayerError } from "clearhead/layer_limits.js";

const VERSION = "1";
const MAX_LETTERS = 50_000;

/** Return the FNV-1a hash of a layer as text, to recognize the page that a link belongs to. @param {Layer} layer */
function hashOf(layer) {
  let hash = 0x811c9dc5;
  for (const letter of JSON.stringify(layer)) hash = Math.imul(hash ^ /** @type {number} */ (letter.codePointAt(0)), 0x01000193);
  return (hash >>> 0).toString(36);
}

/** @param {string} text @returns {string} base64url of its UTF-8 bytes */
function encoded(text) {
  const bytes = String.fromCharCode(...new TextEncoder().encode(text));
  return btoa(bytes).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** @param {string} text @returns {string} */
function decoded(text) {
  const bytes = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0));
  return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
}

/** Return the text of a state; an empty text if nothing differs. @param {Layer} start @param {Layer} layer @returns {string} */
export function stateText(start, layer) {
  const { structure, cells, matrices } = difference(start, layer);
  const before = /** @type {Record<string, any>} */ (structureOf(start));
  const changed = Object.entries(structure).filter(([key, value]) => JSON.stringify(value) !== JSON.stringify(before[key]));
  /** @type {Record<string, number[]>} */
  const values = {};
  for (const { path, row, column, after } of cells) (values[path.join(".")] ??= []).push(row, column, after);
  const content = {
    ...(changed.length && { s: Object.fromEntries(changed) }),
    ...(cells.length && { c: values }),
    ...(matrices.length && { m: Object.fromEntries(matrices.map(({ path, after }) => [path.join("."), after])) }),
  };
  return Object.keys(content).length ? `${VERSION}.${hashOf(start)}.${encoded(JSON.stringify(content))}` : "";
}

/**
 * Return the layer of a state. A text that cannot be read gives the start layer and a message.
 * @param {Layer} start @param {string} text @returns {{ layer: Layer, message: string }}
 */
export function readState(start, text) {
  if (!text) return { layer: start, message: "" };
  try {
    return { layer: layerOf(start, text), message: "" };
  } catch (error) {
    const reason = error instanceof LayerError ? error.message : "it is damaged";
    return { layer: start, message: `The link cannot be read: ${reason}. The page shows its first numbers.` };
  }
}

/** @param {Layer} start @param {string} text @returns {Layer} */
function layerOf(start, text) {
  if (text.length > MAX_LETTERS) throw new LayerError("it is too long");
  const [version, hash, code, ...rest] = text.split(".");
  if (version !== VERSION || rest.length) throw new LayerError("it is of another version");
  if (hash !== hashOf(start)) throw new LayerError("it belongs to another calculation");
  const { s: changed = {}, c: cells = {}, m: matrices = {}, ...others } = JSON.parse(decoded(code));
  const structure = { ...structureOf(start), ...changed };
  const unknown = Object.keys(structure).filter((key) => !(key in structureOf(start)));
  if (unknown.length || Object.keys(others).length) throw new LayerError("it has parts that a layer does not have");
  checkStructure(structure);
  const layer = restructured(start, structure);
  const paths = new Map(matrixPaths(layer).map((path) => [path.join("."), path]));
  for (const [name, values] of [...Object.entries(matrices), ...Object.entries(cells)]) {
    const path = paths.get(name);
    if (!path || !Array.isArray(values)) throw new LayerError("it has numbers that a layer does not have");
    if (Object.hasOwn(matrices, name)) replaceCells(layer, path, values);
    else for (let index = 0; index < values.length; index += 3) writeCell(cellsAt(layer, path), values[index], values[index + 1], values[index + 2]);
  }
  layer.x = tokenRows(layer);
  checkLayer(layer);
  const isOther = layer.memory?.x[0].length !== structure.memory?.width || !layer.embedding !== !structure.vocabulary;
  if (isOther) throw new LayerError("its parts do not fit together");
  return layer;
}

/** @param {Layer} layer @param {CellPath} path @param {number[][]} matrix */
function replaceCells(layer, path, matrix) {
  const parent = /** @type {any} */ (path.slice(0, -1).reduce((part, key) => /** @type {any} */ (part)[key], layer));
  parent[/** @type {string} */ (path.at(-1))] = path[0] === "biases" ? matrix[0] : matrix;
}
