// Steps of one head, from its input to its output, as in explain/_layer_steps.py.
import { columnsOf, product, shapeText, softmaxColumns, softmaxRows, sum, transpose } from "clearhead/matrix_math.js";
import { shortNumber } from "clearhead/number_format.js";
import { operand, partSymbol, subscript } from "clearhead/tracing.js";

/** @typedef {import("clearhead/tracing.js").Tracing} Tracing */
/** @typedef {"query" | "key" | "value"} Projection */

/** @param {number} head @param {Layer} layer @returns {number} key head that a query head uses, both counted from 0 */
export const keyHead = (head, layer) => Math.floor((head * layer.kv_heads) / layer.heads);

/**
 * Add all steps of a head. Keys and values of a key head that an earlier head has used are not repeated.
 * @param {Tracing} tracing @param {number} head @param {Step} x @param {Step} source @param {boolean[][] | null} hidden
 * @returns {Step} output of the head
 */
export function headSteps(tracing, head, x, source, hidden) {
  const { layer, matrices } = tracing;
  const headInput = layer.split === "slice" ? sliceStep(tracing, head, x) : x;
  const query = projection(tracing, "query", head, [headInput, operand(headInput.id, "row")]);
  const shared = keyHead(head, layer);
  const [key, value] = /** @type {Projection[]} */ (["key", "value"]).map((name) => {
    const known = /** @type {Step | undefined} */ (matrices.get(`${name}-${shared + 1}`));
    return known ?? projection(tracing, name, shared, keyInput(layer, head, x, source, headInput));
  });
  let scores = scoresStep(tracing, head, query, key);
  const { on, scale, d_k } = layer.scaling;
  if (on && (scale !== 1 || d_k)) scores = scaledStep(tracing, head, scores, query, key);
  if (hidden) scores = maskedStep(tracing, head, scores, hidden);
  const weights = weightsStep(tracing, head, scores, hidden);
  return tracing.step({
    name: "head_output",
    head,
    formula: `O${subscript(head, layer.heads)} = ${weights.symbol} ${value.symbol}`,
    shapes: productShapes(weights.values, value.values, value.values[0].length),
    values: product(weights.values, value.values),
    multiply_adds: weights.values.length * value.values.length * value.values[0].length,
    operands: [operand(weights.id, "row"), operand(value.id, "column")],
  });
}

/** @param {number[][]} left @param {number[][]} right @param {number} width */
const productShapes = (left, right, width) => `${shapeText(left)} × ${shapeText(right)} = (${left.length}, ${width})`;

/** @param {Tracing} tracing @param {number} head @param {Step} x @returns {Step} columns of X that the head reads */
function sliceStep(tracing, head, x) {
  const width = x.values[0].length / tracing.layer.heads;
  const first = head * width;
  const values = columnsOf(x.values, first, first + width);
  return tracing.step({
    name: "slice",
    head,
    formula: `X${subscript(head, tracing.layer.heads)} = ${partSymbol(x.symbol, first, first + width)}`,
    shapes: `${shapeText(x.values)} → ${shapeText(values)}`,
    values,
    how: "slice",
    operands: [operand(x.id, "cell", { shift: first })],
  });
}

/**
 * Return the matrix that keys and values are computed from, and what they read of it.
 * @param {Layer} layer @param {number} head @param {Step} x @param {Step} source @param {Step} headInput
 * @returns {[Pick<Matrix, "symbol" | "values">, StepOperand]}
 */
function keyInput(layer, head, x, source, headInput) {
  const whole = source.values[0].length;
  if (layer.split === "project" || layer.kv_heads === 1) return [source, operand(source.id, "row")];
  if (source === x && layer.kv_heads === layer.heads) return [headInput, operand(headInput.id, "row")];
  const width = whole / layer.kv_heads;
  const first = keyHead(head, layer) * width;
  const part = { symbol: partSymbol(source.symbol, first, first + width), values: columnsOf(source.values, first, first + width) };
  return [part, operand(source.id, "row", { columns: [first, first + width] })];
}

/**
 * Add Q, K or V. `index` counts query heads for Q and key heads for K and V.
 * @param {Tracing} tracing @param {Projection} name @param {number} index
 * @param {[Pick<Matrix, "symbol" | "values">, StepOperand]} input @returns {Step}
 */
function projection(tracing, name, index, [factor, factorOperand]) {
  const { layer } = tracing;
  const letter = name[0].toUpperCase();
  const sign = subscript(index, name === "query" ? layer.heads : layer.kv_heads);
  const details = { name, head: index, rows: name === "query" ? tracing.queryTokens : tracing.keyTokens };
  const id = `${name}-${index + 1}`;
  const given = layer.given?.[id];
  if (given) {
    const formula = `${letter}${sign} = given`;
    const shapes = `given: ${shapeText(given)}`;
    return tracing.step({ ...details, formula, shapes, values: given, how: "given", kind: "input", path: ["given", id] });
  }
  const weight = layer.weights[name][index];
  const bias = layer.biases[name]?.[index];
  const matrix = tracing.input(`W_${letter}-${index + 1}`, `W_${letter}${sign}`, weight, ["weights", name, index]);
  const operands = [factorOperand, operand(matrix.id, "column")];
  let values = product(factor.values, weight);
  let formula = `${letter}${sign} = ${factor.symbol} ${matrix.symbol}`;
  if (bias) {
    const row = tracing.input(`b_${letter}-${index + 1}`, `b_${letter}${sign}`, [bias], ["biases", name, index]);
    operands.push(operand(row.id, "column"));
    values = sum(values, values.map(() => bias));
    formula += ` + ${row.symbol}`;
  }
  const shapes = productShapes(factor.values, weight, weight[0].length);
  const multiply_adds = values.length * weight.length * weight[0].length;
  return tracing.step({ ...details, formula, shapes, values, multiply_adds, operands });
}

/** @param {Tracing} tracing @param {number} head @param {Step} query @param {Step} key @returns {Step} Q Kᵀ */
function scoresStep(tracing, head, query, key) {
  const transposed = transpose(key.values);
  return tracing.step({
    name: "scores",
    head,
    formula: `${query.symbol} ${key.symbol}ᵀ`,
    shapes: productShapes(query.values, transposed, transposed[0].length),
    values: product(query.values, transposed),
    columns: tracing.keyTokens,
    multiply_adds: query.values.length * transposed[0].length * transposed.length,
    operands: [operand(query.id, "row"), operand(key.id, "column", { transposed: true })],
  });
}

/** @param {Tracing} tracing @param {number} head @param {Step} scores @param {Step} query @param {Step} key @returns {Step} S */
function scaledStep(tracing, head, scores, query, key) {
  const { scale, d_k } = tracing.layer.scaling;
  const width = d_k ?? query.values[0].length;
  const byRoot = scale === null || d_k;
  const scaling = byRoot ? `/ √${width}` : `· ${shortNumber(scale)}`;
  const values = scores.values.map((row) => row.map((value) => (byRoot ? value / Math.sqrt(width) : value * scale)));
  const factors = `${shapeText(query.values)} × ${shapeText(transpose(key.values))}`;
  return tracing.step({
    name: "scaled",
    head,
    formula: `S${subscript(head, tracing.layer.heads)} = ${scores.formula} ${scaling}`,
    shapes: `${factors} ${scaling.replace("·", "×")} = ${shapeText(values)}`,
    values,
    columns: tracing.keyTokens,
    how: "scaled",
    scaling,
    operands: [operand(scores.id, "cell")],
  });
}

/** @param {Tracing} tracing @param {number} head @param {Step} scores @param {boolean[][]} hidden @returns {Step} S + M */
function maskedStep(tracing, head, scores, hidden) {
  const shape = shapeText(scores.values);
  return tracing.step({
    name: "masked",
    head,
    formula: `${scores.symbol} + M`,
    shapes: `${shape} + ${shape} = ${shape}`,
    values: scores.values.map((row, query) => row.map((value, key) => (hidden[query][key] ? -Infinity : value))),
    columns: tracing.keyTokens,
    how: "masked",
    operands: [operand(scores.id, "cell"), operand("M", "cell")],
  });
}

/** @param {Tracing} tracing @param {number} head @param {Step} scores @param {boolean[][] | null} hidden @returns {Step} A */
function weightsStep(tracing, head, scores, hidden) {
  const { heads, softmax } = tracing.layer;
  const byRows = softmax === "rows";
  const shape = shapeText(scores.values);
  return tracing.step({
    name: "weights",
    head,
    formula: `A${subscript(head, heads)} = softmax${byRows ? "" : " over columns "}(${scores.symbol})`,
    shapes: `softmax over each ${byRows ? "row" : "column"} of ${shape} = ${shape}`,
    values: byRows ? softmaxRows(scores.values) : softmaxColumns(scores.values),
    columns: tracing.keyTokens,
    hidden: hidden?.some((row) => row.includes(true)) ? hidden : null,
    how: "softmax",
    operands: [operand(scores.id, byRows ? "row" : "column")],
  });
}
