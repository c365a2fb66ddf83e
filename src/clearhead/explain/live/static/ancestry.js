// Cells that a cell of a calculation depends on, one step back and all the way back to X, W and M.

/** @typedef {[row: number, column: number]} Cell */

/** @param {number} count @returns {number[]} 0 to count - 1 */
const range = (count) => Array.from({ length: count }, (_, index) => index);

/**
 * Return the matrix that a step reads: the transposed one, or some columns of one.
 * @param {Calculation} calculation @param {StepOperand} operand @returns {number[][]}
 */
export function operandValues({ matrices }, { id, transposed, columns }) {
  const { values } = /** @type {Matrix} */ (matrices.get(id));
  if (transposed) return values[0].map((_, column) => values.map((row) => row[column]));
  return columns ? values.map((row) => row.slice(...columns)) : values;
}

/** @param {Matrix} matrix @returns {matrix is Step} */
export const isStep = (matrix) => "operands" in matrix;

/**
 * Return the cells of one operand that a cell of a step depends on.
 * @param {Calculation} calculation @param {StepOperand} operand @param {number} row @param {number} column @returns {Cell[]}
 */
function markedCells({ matrices }, { id, marks, shift, transposed, columns }, row, column) {
  const { values } = /** @type {Matrix} */ (matrices.get(id));
  const [first, end] = columns ?? [0, values[0].length];
  const shifted = column + shift;
  if (transposed) return range(values[0].length).map((index) => [shifted, index]); // a column of Kᵀ is a row of K
  if (marks === "row") return range(end - first).map((index) => [row, first + index]);
  if (marks === "column") return values.map((_, index) => [index, shifted]);
  if (marks === "cell") return shifted >= first && shifted < end ? [[row, shifted]] : [];
  return values.flatMap((cells, index) => cells.map((_, other) => /** @type {Cell} */ ([index, other])));
}

/**
 * Return the cells that a cell is computed from, for each operand of its step. A masked score depends on the mask only,
 * and a hidden weight does not let the value of its key through.
 * @param {Calculation} calculation @param {string} id @param {number} row @param {number} column
 * @returns {{ id: string, cells: Cell[] }[]}
 */
export function sourceCells(calculation, id, row, column) {
  const { matrices, layer } = calculation;
  const step = matrices.get(id);
  if (!step || !isStep(step)) return [];
  if (step.how === "lookup") {
    const index = layer.embedding?.vocabulary.indexOf(layer.tokens[row]) ?? -1;
    return [{ id: "W_E", cells: [[index, column]] }];
  }
  let { operands } = step;
  if (step.how === "masked" && step.values[row][column] === -Infinity) operands = operands.slice(-1);
  const isHiddenWeight = step.how === "softmax" && step.hidden?.[row][column];
  const left = matrices.get(operands[0]?.id)?.hidden;
  return operands.map((operand, position) => {
    if (isHiddenWeight) return { id: operand.id, cells: /** @type {Cell[]} */ ([[row, column]]) };
    const cells = markedCells(calculation, operand, row, column);
    const isValue = step.how === "product" && position === 1 && left;
    return { id: operand.id, cells: isValue ? cells.filter(([key]) => !left[row][key]) : cells };
  });
}

/**
 * Return every cell that a cell depends on, by matrix, as "row,column" counted from 0, with the cell itself.
 * @param {Calculation} calculation @param {string} id @param {number} row @param {number} column
 * @returns {Map<string, Set<string>>}
 */
export function ancestry(calculation, id, row, column) {
  /** @type {Map<string, Set<string>>} */
  const ancestors = new Map([[id, new Set([`${row},${column}`])]]);
  /** @type {[string, number, number][]} */
  const open = [[id, row, column]];
  for (let cell = open.pop(); cell; cell = open.pop()) {
    for (const source of sourceCells(calculation, ...cell)) {
      const known = ancestors.get(source.id) ?? new Set();
      ancestors.set(source.id, known);
      for (const [sourceRow, sourceColumn] of source.cells) {
        const key = `${sourceRow},${sourceColumn}`;
        if (known.has(key)) continue;
        known.add(key);
        open.push([source.id, sourceRow, sourceColumn]);
      }
    }
  }
  return ancestors;
}
