// Arithmetic of single cells, written out as text. The lines are those of explain/render/_arithmetic.py.
import { isStep, operandValues } from "clearhead/ancestry.js";
import { NumberFormat } from "clearhead/number_format.js";

/**
 * Right side of an equation; `exact` if no number in it is rounded.
 * @typedef {{ text: string, exact?: boolean, remark?: string, withoutValue?: boolean }} Line
 */
/** @typedef {{ calculation: Calculation, step: Step, row: number, column: number, digits: number }} ChosenCell */

/**
 * Return the calculation of one cell, such as "Q[1,1] = 0.1 · 3.4 + 0.2 · 0.7 = 0.48". Rows and columns are counted from
 * 0 in the arguments, and from 1 in the text.
 * @param {Calculation} calculation @param {string} id @param {number} row @param {number} column @param {number} [digits]
 * @returns {string[]}
 */
export function arithmeticLines(calculation, id, row, column, digits = 3) {
  const matrix = calculation.matrices.get(id);
  const value = matrix?.values[row]?.[column];
  if (!matrix || value === undefined) return [];
  const form = new NumberFormat(matrix.values, digits);
  const line = isStep(matrix) ? stepLine({ calculation, step: matrix, row, column, digits }) : inputLine(matrix, value);
  const name = cellName(matrix.symbol, row, column);
  const start = line.text ? `${name} = ${line.text}` : name;
  const isExact = (line.exact && form.isExact(value)) || !Number.isFinite(value);
  const result = line.withoutValue ? "" : ` ${isExact ? "=" : "≈"} ${form.signed(value)}`;
  return [`${start}${result}${line.remark ?? ""}`];
}

/** @param {string} symbol @param {number} row @param {number} column */
const cellName = (symbol, row, column) => `${symbol.includes(" ") ? `(${symbol})` : symbol}[${row + 1},${column + 1}]`;

/** @param {Matrix} matrix @param {number} value @returns {Line} */
function inputLine(matrix, value) {
  if (matrix.kind !== "mask") return { text: "", exact: true, remark: ", a weight of the layer" };
  return { text: "", exact: true, remark: value === 0 ? ", the query may attend to this key" : ", the mask hides this key" };
}

/** @param {ChosenCell} cell @returns {Line} */
function stepLine(cell) {
  const { step, column } = cell;
  switch (step.how) {
    case "product":
      return productLine(cell);
    case "scaled":
      return scaledLine(cell);
    case "masked":
    case "sum":
      return sumLine(cell);
    case "softmax":
      return softmaxLine(cell);
    case "lookup":
      return { text: "", exact: true, remark: `, column ${column + 1} of the token's row of W_E` };
    case "slice":
    case "concat":
    case "copy":
      return copyLine(cell);
    case "given":
      return { text: "", exact: true, remark: ", given by the text, not computed" };
    default:
      return { text: "", exact: true, remark: ", an input of the calculation" };
  }
}

/** @param {ChosenCell} cell @returns {{ matrix: Matrix, values: number[][], form: NumberFormat, shift: number }[]} */
function operandsOf({ calculation, step, digits }) {
  return step.operands.map((operand) => {
    const values = operandValues(calculation, operand);
    const matrix = /** @type {Matrix} */ (calculation.matrices.get(operand.id));
    return { matrix, values, form: new NumberFormat(values, digits), shift: operand.shift };
  });
}

/** @param {ChosenCell} cell @returns {Line} */
function productLine(cell) {
  const { row, column } = cell;
  const [left, right, bias] = operandsOf(cell);
  const hidden = left.matrix.hidden?.[row];
  const pairs = left.values[row].map((factor, index) => [factor, right.values[index][column]]).filter((_, index) => !hidden?.[index]);
  if (!pairs.length && !bias) return { text: "0", remark: ", because the query attends to no key", withoutValue: true };
  const terms = pairs.map(([factor, other]) => `${left.form.bracketed(factor)} · ${right.form.bracketed(other)}`);
  let exact = pairs.every(([factor, other]) => left.form.isExact(factor) && right.form.isExact(other));
  if (bias) {
    const value = bias.values[0][column];
    terms.push(bias.form.bracketed(value));
    exact &&= bias.form.isExact(value);
  }
  return { text: terms.join(" + "), exact };
}

/** Return the right side of the formula with the score in place of its symbol. @param {ChosenCell} cell @returns {Line} */
function scaledLine(cell) {
  const { step, row, column } = cell;
  const [{ matrix, values, form }] = operandsOf(cell);
  const value = values[row][column];
  const right = step.formula.slice(step.formula.indexOf(" = ") + " = ".length);
  return { text: right.replace(matrix.symbol, () => form.bracketed(value)), exact: form.isExact(value) };
}

/** @param {ChosenCell} cell @returns {Line} */
function sumLine(cell) {
  const { row, column } = cell;
  const operands = operandsOf(cell);
  const terms = operands.map(({ values, form }, index) => form[index ? "bracketed" : "signed"](values[row][column]));
  return { text: terms.join(" + "), exact: operands.every(({ values, form }) => form.isExact(values[row][column])) };
}

/** @param {ChosenCell} cell @returns {Line} */
function softmaxLine(cell) {
  const { step, row, column } = cell;
  const [{ values, form }] = operandsOf(cell);
  const byColumns = step.operands[0].marks === "column";
  const scores = byColumns ? values.map((cells) => cells[column]) : values[row];
  const visible = scores.filter((score) => score > -Infinity);
  const chosen = values[row][column];
  if (chosen === -Infinity) {
    const none = byColumns ? "no query attends to the key" : "the query attends to no key";
    return { text: "0", remark: `, because ${visible.length ? "the mask hides this key" : none}`, withoutValue: true };
  }
  /** @param {number} score */
  const power = (score) => `e^${form.bracketed(score)}`;
  return { text: `${power(chosen)} / (${visible.map(power).join(" + ")})` };
}

/** Return the cell that a slice or a concatenation takes over. @param {ChosenCell} cell @returns {Line} */
function copyLine(cell) {
  const { row, column } = cell;
  for (const { matrix, values, form, shift } of operandsOf(cell)) {
    const source = column + shift;
    if (source < 0 || source >= values[0].length) continue;
    return { text: cellName(matrix.symbol, row, source), exact: form.isExact(values[row][source]) };
  }
  return { text: "" };
}
