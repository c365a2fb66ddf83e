// The whole calculation in a few lines, from the output to the projections, and its cost.

import { countNoun } from "clearhead/step_wording.js";

/** @param {string} formula */
const rightSide = (formula) => formula.split(" = ").slice(1).join(" = ") || formula;

/** Return the lines of the whole formula. @param {Calculation} calculation @returns {string[]} */
export function wholeFormula({ layer, steps }) {
  /** @type {Record<string, Step>} */
  const first = {};
  for (const step of steps) first[step.name] ??= step;
  const group = layer.heads / layer.kv_heads;
  const keyIndex = group > 1 && layer.kv_heads > 1 ? "ⱼ" : "ᵢ";
  const projections = ["query", "key", "value"].map((name) => first[name]).filter(Boolean);
  const lines = [outputLine(first.output, first.concat, layer), headLine(first), projections.map(({ formula }) => formula).join(",  ")];
  const general = layer.heads > 1 ? lines.map((line) => anyHead(line, keyIndex)) : lines;
  return keyIndex === "ⱼ" ? [...general, `j = ⌈i / ${group}⌉, the key head of head i`] : general;
}

/** Return the formula of the output, with the heads in place of C. @param {Step} output @param {Step} concat @param {Layer} layer */
function outputLine(output, concat, layer) {
  const joined = layer.heads > 1 ? rightSide(concat.formula) : "O";
  return `Y = ${rightSide(output.formula).replace("C", () => joined)}`;
}

/** Return softmax(Q Kᵀ / √d + M) V of the first head. @param {Record<string, Step>} first */
function headLine({ weights, head_output: output, value, scores, scaled, masked }) {
  const softmax = weights.formula.includes("columns") ? "softmax over columns" : "softmax";
  return `${output.symbol} = ${softmax}(${rightSide((scaled ?? scores).formula)}${masked ? " + M" : ""}) ${value.symbol}`;
}

/** Write i for the index of the first head, and `keyIndex` for that of K and V. @param {string} formula @param {string} keyIndex */
function anyHead(formula, keyIndex) {
  if (formula.includes("Concat")) return formula;
  const name = keyIndex === "ⱼ" ? "key head j" : "head i";
  return formula
    .replace(/(?<=[KV])₁/gu, keyIndex)
    .replace(/\[columns? [^\]]*\]/gu, `[columns of ${name}]`)
    .replaceAll("₁", "ᵢ");
}

/** Return the cost of each head and of the whole layer, and that of one wide head. @param {Calculation} calculation */
export function costSentences(calculation) {
  const { layer, steps } = calculation;
  const total = sumOf(steps);
  const group = layer.heads / layer.kv_heads;
  const costs = Array.from({ length: layer.heads }, (_, head) =>
    sumOf(steps.filter((step) => step.head === (step.name === "key" || step.name === "value" ? Math.floor(head / group) : head))),
  );
  const shared = sumOf(steps.filter((step) => step.head === null));
  const isEqual = costs.every((cost) => cost === costs[0]);
  const texts = costs.map((cost) => cost.toLocaleString("en-US"));
  const each = layer.heads === 1 ? `${texts[0]} for the head` : isEqual ? `${texts[0]} for each head` : `${texts.join(", ")} for the heads`;
  const parts = shared ? `${each} and ${shared.toLocaleString("en-US")} for W_O` : each;
  const repeated = costs.reduce((sum, cost) => sum + cost, 0) + shared - total;
  const note = repeated ? ` (${countNoun(repeated, "multiply-add")} of shared keys and values counted once)` : "";
  return [`Cost: ${countNoun(total, "multiply-add")} in all, ${parts}${note}.`, ...wideHead(calculation, total)];
}

/** @param {Step[]} steps */
const sumOf = (steps) => steps.reduce((sum, step) => sum + step.multiply_adds, 0);

/** Return a sentence that compares the layer with one head of the same total width. @param {Calculation} calculation @param {number} total */
function wideHead({ layer, steps }, total) {
  if (layer.heads === 1 || steps.some((step) => step.how === "given") || !layer.use_output) return [];
  /** @type {(name: string) => Step} */
  const first = (name) => /** @type {Step} */ (steps.find((step) => step.name === name));
  const width = (/** @type {string} */ name) => first(name).values[0].length;
  const [queries, keys] = [layer.tokens.length, first("key").values.length];
  const [keyWidth, valueWidth] = [layer.heads * width("query"), layer.heads * width("value")];
  const inputs = width("input");
  const wide =
    queries * inputs * keyWidth +
    keys * (layer.memory ? width("memory") : inputs) * (keyWidth + valueWidth) +
    queries * keys * (keyWidth + valueWidth) +
    first("output").multiply_adds;
  const compared = wide === total ? "the same" : wide > total ? "more" : "less";
  const reason = compared === "more" && layer.split === "slice" ? ", because each head here reads only its own columns of the input" : "";
  const widths = keyWidth === valueWidth ? `keys of width ${keyWidth}` : `keys of width ${keyWidth}, values of ${valueWidth}`;
  return [`One wide head (${widths}) would cost ${countNoun(wide, "multiply-add")}: ${compared}${reason}.`];
}
