// The cell whose arithmetic stands for a step, as in explain/render/_arithmetic.py.

/** Return the sample cell of a step, counted from 0; none if nothing is computed. @param {Step} step @param {Calculation} calculation @returns {[number, number][]} */
export function sampleCell(step, { matrices }) {
  const left = matrices.get(step.operands[0]?.id);
  if (!left || step.how === "input" || step.how === "given") return [];
  if (step.how === "softmax") {
    const row = firstWithTwo(left.values.map((values) => values.filter((value) => value > -Infinity).length));
    return [[row, step.values[row].indexOf(Math.max(...step.values[row]))]];
  }
  if (step.how === "masked") {
    const row = step.values.findIndex((values) => values.includes(-Infinity));
    return row < 0 ? [[0, 0]] : [[row, step.values[row].indexOf(-Infinity)]];
  }
  if (left.hidden) return [[firstWithTwo(left.hidden.map((row) => row.filter((isHidden) => !isHidden).length)), 0]];
  if (step.name === "scores" || step.name === "scaled") {
    const sizes = step.values[0].map(Math.abs);
    return [[0, sizes.indexOf(Math.max(...sizes))]]; // a number near 0 would show nothing
  }
  return [[0, step.how === "concat" && step.operands.length > 1 ? left.values[0].length : 0]];
}

/** Return the first row with at least two visible keys, or with the most. @param {number[]} counts */
const firstWithTwo = (counts) => counts.findIndex((count) => count >= Math.min(2, Math.max(...counts)));
