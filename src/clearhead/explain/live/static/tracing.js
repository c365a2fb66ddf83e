// Matrices of a calculation, collected step by step.

const SUBSCRIPTS = "₀₁₂₃₄₅₆₇₈₉";

/** @typedef {Partial<Step> & { name: string, formula: string, shapes: string, values: number[][] }} StepDetails */

/** @param {number} count @returns {string[]} "1", "2" … */
const indices = (count) => Array.from({ length: count }, (_, index) => String(index + 1));

/** Matrices of a calculation so far. */
export class Tracing {
  /** @param {Layer} layer */
  constructor(layer) {
    this.layer = layer;
    this.queryTokens = layer.tokens;
    this.keyTokens = (layer.memory ?? layer).tokens;
    /** @type {Map<string, Matrix>} */
    this.matrices = new Map();
    /** @type {Step[]} */
    this.steps = [];
  }

  /**
   * Add an input that is not a step: a weight matrix, a bias or the mask.
   * @param {string} id @param {string} symbol @param {number[][]} values @param {CellPath} path @param {Partial<Matrix>} [other]
   * @returns {Matrix}
   */
  input(id, symbol, values, path, other = {}) {
    /** @type {Matrix} */
    const matrix = {
      id,
      symbol,
      kind: "weight",
      values,
      rows: indices(values.length),
      columns: indices(values[0].length),
      path,
      hidden: null,
      ...other,
    };
    if (!this.matrices.has(id)) this.matrices.set(id, matrix);
    return matrix;
  }

  /** Add a step. The symbol of its matrix is the left side of the formula. @param {StepDetails} details @returns {Step} */
  step(details) {
    const head = details.head ?? null;
    /** @type {Step} */
    const step = {
      id: head === null ? details.name : `${details.name}-${head + 1}`,
      symbol: details.formula.split(" = ")[0],
      kind: "step",
      rows: this.queryTokens,
      columns: indices(details.values[0].length),
      path: null,
      hidden: null,
      head,
      how: "product",
      multiply_adds: 0,
      operands: [],
      ...details,
    };
    this.matrices.set(step.id, step);
    this.steps.push(step);
    return step;
  }
}

/** @param {number} index @param {number} count @returns {string} subscript of one of `count` heads, or nothing for the only one */
export const subscript = (index, count) =>
  count === 1 ? "" : [...String(index + 1)].map((digit) => SUBSCRIPTS[Number(digit)]).join("");

/** @param {string} id @param {StepOperand["marks"]} marks @param {Partial<StepOperand>} [other] @returns {StepOperand} */
export const operand = (id, marks, other = {}) => ({ id, marks, shift: 0, transposed: false, ...other });

/** @param {string} symbol @param {number} first @param {number} end @returns {string} such as "X[columns 1 to 2]" */
export const partSymbol = (symbol, first, end) =>
  end - first === 1 ? `${symbol}[column ${end}]` : `${symbol}[columns ${first + 1} to ${end}]`;

/**
 * Return the symbol of a matrix as a step reads it, such as "Kᵀ" or "X[columns 1 to 2]".
 * @param {Calculation} calculation @param {StepOperand} operand @returns {string}
 */
export function operandSymbol({ matrices }, { id, transposed, columns }) {
  const { symbol } = /** @type {Matrix} */ (matrices.get(id));
  return columns ? partSymbol(symbol, ...columns) : `${symbol}${transposed ? "ᵀ" : ""}`;
}
