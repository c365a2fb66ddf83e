// Calculation of a layer, step by step, in float64. The steps, formulas and ids are those of explain/_layer_steps.py.
import { headSteps } from "clearhead/head_steps.js";
import { inputSteps } from "clearhead/input_steps.js";
import { concatenate, hiddenCells, product, shapeText, sum } from "clearhead/matrix_math.js";
import { operand, Tracing } from "clearhead/tracing.js";

/** Compute every matrix of a layer. @param {Layer} layer @returns {Calculation} */
export function calculate(layer) {
  const tracing = new Tracing(layer);
  const { x, source } = inputSteps(tracing);
  const hidden = hiddenCells(layer);
  if (hidden) {
    const values = hidden.map((row) => row.map((isHidden) => (isHidden ? -Infinity : 0)));
    const labels = { rows: tracing.queryTokens, columns: tracing.keyTokens };
    tracing.input("M", "M", values, ["mask", "hidden"], { kind: "mask", ...labels });
  }
  const outputs = Array.from({ length: layer.heads }, (_, head) => headSteps(tracing, head, x, source, hidden));
  outputSteps(tracing, outputs);
  return { layer, matrices: tracing.matrices, steps: tracing.steps };
}

/** Add the concatenation of the heads and the product with W_O. @param {Tracing} tracing @param {Step[]} outputs */
function outputSteps(tracing, outputs) {
  const { layer } = tracing;
  const values = concatenate(outputs.map((output) => output.values));
  const width = outputs[0].values[0].length;
  const concat = tracing.step({
    name: "concat",
    formula: `C = Concat(${outputs.map((output) => output.symbol).join(", ")})`,
    shapes: `Concat[${outputs.map((output) => shapeText(output.values)).join(", ")}] = ${shapeText(values)}`,
    values,
    how: "concat",
    operands: outputs.map((output, index) => operand(output.id, "cell", { shift: -index * width })),
  });
  if (!layer.use_output) {
    const operands = [operand("concat", "cell")];
    tracing.step({ name: "output", formula: "Y = C", shapes: shapeText(values), values, how: "copy", operands });
    return;
  }
  const weight = layer.weights.output;
  const bias = layer.biases.output;
  tracing.input("W_O", "W_O", weight, ["weights", "output"]);
  const operands = [operand("concat", "row"), operand("W_O", "column")];
  let result = product(concat.values, weight);
  if (bias) {
    tracing.input("b_O", "b_O", [bias], ["biases", "output"]);
    operands.push(operand("b_O", "column"));
    result = sum(result, result.map(() => bias));
  }
  tracing.step({
    name: "output",
    formula: `Y = C W_O${bias ? " + b_O" : ""}`,
    shapes: `${shapeText(values)} × ${shapeText(weight)} = ${shapeText(result)}`,
    values: result,
    multiply_adds: result.length * weight.length * weight[0].length,
    operands,
  });
}
