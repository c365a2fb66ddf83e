// Difference of two layers: the structure of the second, and the cells that differ after the first got this structure.
import { cellsAt, drawnRow, setCross, setHeads, setKeyHeads, setPositions, setSplit, setTokens } from "clearhead/change_layer.js";
import { tokenRows } from "clearhead/input_steps.js";
import { attempt } from "clearhead/layer_limits.js";

/** Everything of a layer except its numbers. @typedef {Omit<Layer, "x" | "memory" | "weights" | "biases" | "embedding" |
 *   "positions" | "given"> & { memory: { tokens: string[], width: number } | null, vocabulary: string[] | null,
 *   positions: { on: boolean, sinusoidal: boolean } | null, given: string[] }} Structure */
/** A cell that differs. @typedef {{ path: CellPath, row: number, column: number, before: number, after: number }} CellChange */
/** A matrix whose shape differs. @typedef {{ path: CellPath, before: number[][] | null, after: number[][] }} MatrixChange */
/** @typedef {{ structure: Structure, cells: CellChange[], matrices: MatrixChange[] }} LayerDifference */

/** @param {Layer} layer @returns {Structure} */
export function structureOf(layer) {
  const { tokens, heads, kv_heads, split, mask, scaling, softmax, use_output, memory, positions, embedding, given } = layer;
  return {
    ...{ tokens, heads, kv_heads, split, mask, softmax, use_output },
    scaling: { on: scaling.on, scale: scaling.scale, d_k: scaling.d_k ?? null },
    memory: memory && { tokens: memory.tokens, width: memory.x[0].length },
    positions: positions ? { on: positions.on, sinusoidal: positions.sinusoidal } : null,
    vocabulary: embedding?.vocabulary ?? null,
    given: Object.keys(given ?? {}),
  };
}

/** @param {Layer} layer @returns {CellPath[]} paths of all matrices of numbers that are not computed */
export function matrixPaths(layer) {
  const { weights, biases } = layer;
  const projections = /** @type {("query" | "key" | "value")[]} */ (["query", "key", "value"]);
  return [
    layer.embedding ? ["embedding", "values"] : ["x"],
    ...(layer.memory ? [["memory", "x"]] : []),
    ...(layer.positions ? [["positions", "values"]] : []),
    ...projections.flatMap((name) => weights[name].map((_, head) => ["weights", name, head])),
    ["weights", "output"],
    ...projections.flatMap((name) => (biases[name] ?? []).map((_, head) => ["biases", name, head])),
    ...(biases.output ? [["biases", "output"]] : []),
    ...Object.keys(layer.given ?? {}).map((id) => ["given", id]),
  ];
}

/**
 * Return a layer with another structure, by the changes that a reader makes: cross-attention, heads, split, tokens,
 * positions. A change that is refused is left out; the matrices are then of another shape than the structure requires.
 * @param {Layer} layer @param {Structure} structure @returns {Layer}
 */
export function restructured(layer, structure) {
  const { memory, positions } = structure;
  /** @type {((layer: Layer) => Layer)[]} */
  const changes = [
    // another width of the memory: it was removed and added again
    (old) => (memory && old.memory && memory.width !== old.memory.x[0].length ? setCross(old, false) : old),
    (old) => setCross(old, memory !== null),
    (old) => setSplit(old, "project"), // slices refuse numbers of heads that projections can have
    (old) => setHeads(old, structure.heads),
    (old) => setKeyHeads(old, structure.kv_heads),
    (old) => setSplit(old, structure.split),
    (old) => setTokens(old, structure.tokens),
    (old) => (memory ? setTokens(old, memory.tokens, "key") : old),
    (old) => (positions ? setPositions(old, positions.on) : old),
  ];
  let changed = layer;
  for (const change of changes) changed = attempt(changed, change).layer;
  const { tokens, heads, kv_heads, split, mask, scaling, softmax, use_output } = structuredClone(structure);
  changed = structuredClone({ ...changed, tokens, heads, kv_heads, split, mask, scaling, softmax, use_output });
  changed.given = Object.fromEntries(structure.given.map((id) => [id, changed.given?.[id] ?? [[]]]));
  changed.positions = positions && changed.positions ? { ...changed.positions, ...positions } : null;
  if (changed.embedding && structure.vocabulary) {
    const { vocabulary, values } = changed.embedding;
    const rows = structure.vocabulary.map((word) => values[vocabulary.indexOf(word)] ?? drawnRow(word, values[0].length));
    changed.embedding = { vocabulary: [...structure.vocabulary], values: rows };
  }
  changed.x = tokenRows(changed);
  return changed;
}

/** @param {Layer} start @param {Layer} layer @returns {LayerDifference} */
export function difference(start, layer) {
  const structure = structureOf(layer);
  const base = restructured(start, structure);
  /** @type {LayerDifference} */
  const result = { structure, cells: [], matrices: [] };
  for (const path of matrixPaths(layer)) {
    const after = /** @type {number[][]} */ (cellsAt(layer, path));
    const before = /** @type {number[][] | null} */ (cellsAt(base, path));
    if (before?.length !== after.length || before[0].length !== after[0].length) {
      result.matrices.push({ path, before, after });
      continue;
    }
    after.forEach((cells, row) =>
      cells.forEach((value, column) => {
        if (value !== before[row][column]) result.cells.push({ path, row, column, before: before[row][column], after: value });
      }),
    );
  }
  return result;
}
