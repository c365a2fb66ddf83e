// Steps that make the input of a layer: embedding, positions, input and memory, as in explain/_input_steps.py.
import { shapeText, sum } from "clearhead/matrix_math.js";
import { operand } from "clearhead/tracing.js";

/** @typedef {import("clearhead/tracing.js").Tracing} Tracing */

/**
 * Return the rows of the tokens, looked up in the embedding table if there is one.
 * @param {Pick<Layer, "tokens" | "x" | "embedding">} layer @returns {number[][]}
 */
export function tokenRows({ tokens, x, embedding }) {
  return embedding ? tokens.map((token) => embedding.values[embedding.vocabulary.indexOf(token)]) : x;
}

/** Return X, with positions if they are added. @param {Layer} layer @returns {number[][]} */
export function layerInput(layer) {
  const rows = tokenRows(layer);
  return layer.positions?.on ? sum(rows, layer.positions.values) : rows;
}

/** @param {Tracing} tracing @returns {{ x: Step, source: Step }} X, and the input of keys and values */
export function inputSteps(tracing) {
  const { layer } = tracing;
  const x = layer.positions?.on ? addedPositions(tracing, layer.positions) : lookedUp(tracing, "input", "X");
  if (!layer.memory) return { x, source: x };
  const source = tracing.step({
    name: "memory",
    formula: "Z",
    shapes: shapeText(layer.memory.x),
    values: layer.memory.x,
    rows: layer.memory.tokens,
    kind: "input",
    how: "input",
    path: ["memory", "x"],
  });
  return { x, source };
}

/** @param {Tracing} tracing @param {Positions} positions @returns {Step} X = E + P */
function addedPositions(tracing, positions) {
  const rows = lookedUp(tracing, "embedding", "E");
  tracing.step({
    name: "positions",
    formula: positions.sinusoidal ? "P = sinusoidal" : "P",
    shapes: shapeText(positions.values),
    values: positions.values,
    kind: "input",
    how: "input",
    path: ["positions", "values"],
  });
  const shape = shapeText(rows.values);
  return tracing.step({
    name: "input",
    formula: "X = E + P",
    shapes: `${shape} + ${shape} = ${shape}`,
    values: layerInput(tracing.layer),
    how: "sum",
    operands: [operand("embedding", "cell"), operand("positions", "cell")],
  });
}

/** @param {Tracing} tracing @param {"input" | "embedding"} name @param {string} symbol @returns {Step} */
function lookedUp(tracing, name, symbol) {
  const { layer } = tracing;
  const values = tokenRows(layer);
  const shape = shapeText(values);
  if (!layer.embedding) {
    return tracing.step({ name, formula: symbol, shapes: shape, values, kind: "input", how: "input", path: ["x"] });
  }
  const { vocabulary, values: table } = layer.embedding;
  tracing.input("W_E", "W_E", table, ["embedding", "values"], { rows: vocabulary });
  return tracing.step({
    name,
    formula: `${symbol} = W_E[tokens]`,
    shapes: `${values.length} rows of ${shapeText(table)} = ${shape}`,
    values,
    how: "lookup",
    operands: [operand("W_E", "column")],
  });
}
