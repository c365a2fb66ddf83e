// -- self-check: the same rules as clearhead/explain/exercises/_follow_through.py ----------------------------------
// The page stores given numbers only. It computes the exact ones when the student asks for a check.

const steps = exercise.calculation;
const SMALLEST_CHANGE = 1e-9;
const ROUNDING = 1e-12;
const halfUnit = 0.5 * 10 ** -exercise.digits;
const mapCells = (matrix, change) => matrix.map((row, r) => row.map((cell, c) => change(cell, r, c)));
const constant = ([rows, columns], value) => Array.from({ length: rows }, () => Array(columns).fill(value));
const transpose = (matrix) => matrix[0].map((_, column) => matrix.map((row) => row[column]));
// JSON has no −∞
const fromJson = (matrix) => mapCells(matrix, (cell) => (cell === null ? -Infinity : cell));
const multiply = (left, right) =>
  left.map((row) => right[0].map((_, column) => row.reduce((sum, cell, k) => sum + cell * right[k][column], 0)));

function softmax(row) {
  const largest = Math.max(...row);
  if (largest === -Infinity) return row.map(() => 0);
  const powers = row.map((cell) => Math.exp(cell - largest));
  const sum = powers.reduce((total, power) => total + power, 0);
  return powers.map((power) => power / sum);
}

// operands of a step that are earlier steps, as their indices
const sources = steps.map((step) => step.operands.filter((operand) => "step" in operand).map((operand) => operand.step));

function compute(index, matrices) {
  const step = steps[index];
  const [first, second, bias] = step.operands.map((operand) => {
    if ("values" in operand) return fromJson(operand.values);
    return operand.transposed ? transpose(matrices[operand.step]) : matrices[operand.step];
  });
  if (step.how === "slice") return first.map((row) => row.slice(step.first_column, step.first_column + step.shape[1]));
  if (step.how === "product") return mapCells(multiply(first, second), (cell, r, c) => cell + (bias ? bias[0][c] : 0));
  if (step.how === "scaled") return mapCells(first, (cell) => cell * step.factor);
  if (step.how === "masked") return mapCells(first, (cell, r, c) => cell + second[r][c]);
  if (step.how === "softmax") return first.map(softmax);
  return first.map((_, row) => sources[index].flatMap((source) => matrices[source][row]));
}

const distance = (left, right) => (left === right ? 0 : Math.abs(left - right));
const largestOf = (matrix) => Math.max(0, ...matrix.flat().filter(Number.isFinite).map(Math.abs));

function agree(written, computed, tolerance) {
  const rounding = ROUNDING * largestOf(computed);
  return mapCells(computed, (cell, r, c) => distance(written[r][c], cell) <= tolerance[r][c] + rounding);
}

// how much each cell can change if each operand changes by its uncertainty
function spread(index, operands, uncertainty, result) {
  const total = constant(steps[index].shape, 0);
  for (const source of new Set(sources[index])) {
    uncertainty[source].forEach((row, r) =>
      row.forEach((change, c) => {
        if (!change) return;
        const values = operands[source].map((cells) => [...cells]);
        values[r][c] += change;
        const varied = compute(index, { ...operands, [source]: values });
        mapCells(total, (_, i, j) => (total[i][j] += distance(varied[i][j], result[i][j]) || 0));
      }),
    );
  }
  return total;
}

function pick(index, chosen, first, second) {
  return Object.fromEntries(sources[index].map((source, position) => [source, (chosen[position] ? first : second)[source]]));
}

function choices(index) {
  const count = sources[index].length;
  const all = Array(count).fill(true);
  return count === 2 && steps[index].how !== "concat" ? [all, [true, false], [false, true]] : [all];
}

function answerOf(input) {
  const text = tidy(input.value);
  if (takesInfinity(input) && (isInfinite(text) || (NUMBER.test(text) && Number(text) <= -1e4))) return -Infinity;
  return isNumber(text) ? Number(text) : NaN;
}

const differ = (left, right, index) =>
  mapCells(agree(left, right, constant(steps[index].shape, SMALLEST_CHANGE)), (equal) => !equal);

function judge(index, answers, exact, versions) {
  const unit = constant(steps[index].shape, exercise.tolerance);
  const certain = Object.fromEntries(sources[index].map((source) => [source, constant(steps[source].shape, 0)]));
  const right = agree(answers, exact[index], unit);
  const carried = constant(steps[index].shape, false);
  const affected = constant(steps[index].shape, false);
  for (const version of versions) {
    for (const chosen of choices(index)) {
      const correct = compute(index, pick(index, chosen, version.withoutErrors, exact));
      const matches = agree(answers, correct, unit);
      mapCells(matches, (match, r, c) => (right[r][c] ||= match));
      const operands = pick(index, chosen, version.values, exact);
      const result = compute(index, operands);
      const dependent = differ(result, correct, index);
      if (!dependent.flat().some(Boolean)) continue;
      mapCells(dependent, (match, r, c) => (affected[r][c] ||= match));
      const bound = spread(index, operands, pick(index, chosen, version.uncertainty, certain), result);
      const close = agree(answers, result, mapCells(bound, (cell) => Math.max(exercise.tolerance, cell + halfUnit)));
      mapCells(close, (match, r, c) => (carried[r][c] ||= match && dependent[r][c]));
    }
  }
  const sound = mapCells(right, (match, r, c) => match && !affected[r][c]); // right, and independent of errors
  return { right, carried, sound };
}

function roundHalfUp(value) {
  return (Math.sign(value) * Math.floor(Math.abs(value) * 10 ** exercise.digits + 0.5 + SMALLEST_CHANGE)) / 10 ** exercise.digits;
}

function continueWith(version, index, written, sound, exact) {
  let computed = compute(index, version.values);
  let correct = compute(index, version.withoutErrors);
  const cells = written ?? constant(steps[index].shape, NaN);
  let bound = constant(steps[index].shape, halfUnit);
  if (cells.flat().some(Number.isNaN)) {
    // the student may have rounded a number that is not written and follows from an error
    const changed = differ(computed, correct, index);
    bound = spread(index, version.values, version.uncertainty, computed);
    bound = mapCells(bound, (cell, r, c) => cell + (changed[r][c] ? halfUnit : 0));
  }
  if (version.rounds) [computed, correct] = [computed, correct].map((matrix) => mapCells(matrix, roundHalfUp));
  const choose = (ifBlank, otherwise) =>
    mapCells(cells, (cell, r, c) => (Number.isNaN(cell) ? ifBlank[r][c] : otherwise(cell, r, c)));
  version.values[index] = choose(computed, (cell) => cell);
  version.uncertainty[index] = choose(bound, () => halfUnit);
  version.withoutErrors[index] = choose(correct, (cell, r, c) => (sound && !sound[r][c] ? exact[index][r][c] : cell));
}

function check() {
  const exact = [];
  steps.forEach((_, index) => (exact[index] = compute(index, exact)));
  // the student continues from the shown steps, or from the answers alone, and may round what is not written
  const versions = [
    { usesShown: true, rounds: false },
    { usesShown: false, rounds: false },
    { usesShown: false, rounds: true },
  ].map((version) => ({ ...version, values: [], uncertainty: [], withoutErrors: [] }));
  let points = 0;
  let possible = 0;
  steps.forEach((step, index) => {
    const position = exercise.answers.findIndex(({ id }) => id === step.id);
    const answers = step.blank ? mapCells(grids[position], answerOf) : null;
    let sound = null;
    if (answers) {
      const verdicts = judge(index, answers, exact, versions);
      sound = verdicts.sound;
      const earned = showVerdicts(step, grids[position], verdicts);
      points += earned;
      possible += step.points;
    }
    const printed = step.printed === null ? null : fromJson(step.printed);
    for (const version of versions) continueWith(version, index, answers ?? (version.usesShown ? printed : null), sound, exact);
  });
  statusLine.textContent = `${shortNumber(points)} of ${shortNumber(possible)} points. For the causes of errors, run clearhead mark on the saved file.`;
}

const shortNumber = (value) => String(Number(value.toFixed(2)));

function showVerdicts(step, grid, { right, carried }) {
  let credited = 0;
  mapCells(grid, (input, r, c) => {
    const verdict = right[r][c] ? "right" : carried[r][c] ? "carried" : isBlank(input.value) ? "blank" : "wrong";
    const words = { right: "right", carried: "follows from an earlier mistake; full points", wrong: "wrong", blank: "blank" };
    credited += verdict === "right" || verdict === "carried";
    input.parentElement.dataset.verdict = verdict;
    input.title = words[verdict];
  });
  const earned = (step.points * credited) / (step.shape[0] * step.shape[1]);
  document.querySelector(`#${step.id} .points`).textContent = `${shortNumber(earned)} of ${shortNumber(step.points)} points`;
  return earned;
}

document.getElementById("check").addEventListener("click", check);
