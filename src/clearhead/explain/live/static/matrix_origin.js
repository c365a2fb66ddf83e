// Sources of the numbers of a matrix: those of the example, and what the reader changed.

import { countNoun, isIdentity } from "clearhead/step_wording.js";

/** @type {Record<string, string>} */
const MASKS = { causal: "causal mask", padding: "mask of padding", custom: "custom mask" };

/**
 * Return where the numbers of a matrix come from.
 * @param {Matrix} matrix @param {Calculation} calculation @param {Calculation} initial @param {Record<string, string>} origins by id, at the start
 * @returns {string}
 */
export function originText(matrix, { layer }, initial, origins) {
  if (matrix.kind === "step") return "computed";
  const before = initial.matrices.get(matrix.id);
  const defaults = { weight: "from the layer's parameters", mask: "mask", input: "input" };
  const origin = origins[matrix.id] ?? defaults[matrix.kind];
  const changed = before ? changedCells(before.values, matrix.values) : undefined;
  if (changed === 0) return origin;
  if (matrix.kind === "mask") return MASKS[layer.mask.kind] ?? "mask";
  if (matrix.id === "W_O" && isIdentity(matrix.values)) return "identity: leaves C unchanged";
  if (changed === undefined) return before ? "of another shape than at the start" : "not in the calculation at the start";
  return changed === matrix.values.flat().length ? "changed" : `${origin}; ${countNoun(changed, "number")} changed`;
}

/** Return how many numbers differ, or undefined for another shape. @param {number[][]} before @param {number[][]} after */
function changedCells(before, after) {
  if (before.length !== after.length || before[0].length !== after[0].length) return undefined;
  const old = before.flat();
  return after.flat().filter((value, index) => value !== old[index]).length;
}
