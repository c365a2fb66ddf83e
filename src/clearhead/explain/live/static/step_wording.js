// Titles and sentences of steps, equal to those of explain/render/wording.py (compared by a test).

/** @type {Record<string, string>} */
const TITLES = {
  embedding: "Embedding",
  positions: "Positions",
  input: "Input",
  memory: "Memory",
  mask: "Mask",
  slice: "Slice",
  query: "Queries",
  key: "Keys",
  value: "Values",
  scores: "Scores",
  scaled: "Scaled scores",
  masked: "Masked scores",
  weights: "Attention weights",
  head_output: "Head output",
  concat: "Concatenated heads",
  output: "Output",
};
/** @type {Record<string, string>} */
const SENTENCES = {
  embedding: "One row for each token, before its position is added.",
  positions: "One row for each position, counted from 0. It makes equal tokens at different positions differ.",
  input: "One row for each token.",
  memory: "One row for each token of the other text. The keys and the values are computed from it.",
  mask: "A row for each query and a column for each key: 0 where the query may attend, −∞ where not.",
  slice: "This head reads only its own columns of the input. Real models do not slice: each head projects the whole input.",
  query: "A query describes what a token looks for in other tokens.",
  key: "A key describes what a token has, and is compared with the queries.",
  value: "A value is what a token passes on to the tokens that attend to it.",
  scores: "A score is the dot product of a query and a key: the larger it is, the better they match.",
  scaled: "More columns make larger dot products. The scaling compensates for that.",
  masked: "The mask sets a score to −∞ where a query may not attend, so that the weight is 0.",
  weights: "Softmax turns each row into numbers from 0 to 1 that sum to 1: the attention of a query to each key.",
  head_output: "Each row is the mean of the values, weighted by the attention weights of a query.",
  concat: "The outputs of all heads are joined column by column.",
  output: "The output matrix mixes the outputs of the heads.",
};
const LOOKED_UP = "Each token is looked up in the embedding table, which has one row for each token of the vocabulary.";
const COLUMNS =
  "Softmax turns each column into numbers from 0 to 1 that sum to 1. The rows then do not sum to 1. Standard attention applies softmax to rows.";
const UNNORMALIZED = "Each row is a sum of the values, weighted by numbers of a row of A, which need not sum to 1.";

/** Return a count with its noun, such as "1,024 multiply-adds". @param {number} count @param {string} noun */
export const countNoun = (count, noun) => `${count.toLocaleString("en-US")} ${noun}${count === 1 ? "" : "s"}`;

/** Return a step's title, with its head if there are several. @param {Step} step @param {Layer} layer */
export function stepHeading(step, layer) {
  const title = TITLES[step.name] ?? step.name;
  if (layer.heads === 1 || step.head === null) return title;
  const group = layer.heads / layer.kv_heads;
  if (group === 1 || (step.name !== "key" && step.name !== "value")) return `${title}, head ${step.head + 1}`;
  return `${title}, shared by heads ${step.head * group + 1} ${group === 2 ? "and" : "to"} ${(step.head + 1) * group}`;
}

/** Return one or more sentences that explain a step. @param {Step} step @param {Calculation} calculation */
export const stepSentence = (step, calculation) => [sentence(step, calculation.layer), remark(step, calculation)].filter(Boolean).join(" ");

/** @param {Step} step @param {Layer} layer */
function sentence(step, layer) {
  if (step.how === "given") return "This matrix is given, not computed.";
  if (step.how === "lookup") return LOOKED_UP;
  if (step.name === "concat" && layer.heads === 1) return "With one head there is nothing to join: C = O.";
  if (step.name === "output" && !layer.use_output) return "W_O is switched off: the output is C, and nothing mixes the heads.";
  if (layer.softmax === "columns" && step.name === "weights") return COLUMNS;
  if (layer.softmax === "columns" && step.name === "head_output") return UNNORMALIZED;
  return SENTENCES[step.name] ?? "";
}

/** Return a sentence about a special case, or an empty string. @param {Step} step @param {Calculation} calculation */
function remark(step, calculation) {
  const { layer, matrices } = calculation;
  if (step.name === "weights" && step.hidden && layer.softmax === "rows") {
    const empty = step.hidden.filter((row) => row.every(Boolean)).length;
    return empty ? `${countNoun(empty, "row")} may attend to no key: all weights are 0, and do not sum to 1.` : "";
  }
  if (step.name !== "output" || !layer.use_output) return "";
  return isIdentity(matrices.get("W_O")?.values ?? []) ? "W_O is the identity here, which leaves C unchanged." : "";
}

/** @param {number[][]} values */
export const isIdentity = (values) =>
  values.length > 0 && values.every((row, index) => row.length === values.length && row.every((cell, column) => cell === Number(index === column)));

/** Return the cost of a step in words. @param {Step} step @param {Calculation} calculation */
export function stepCost(step, { matrices }) {
  const learned = step.operands
    .map(({ id }) => matrices.get(id))
    .filter((matrix) => matrix?.kind === "weight")
    .reduce((sum, matrix) => sum + (matrix?.values.flat().length ?? 0), 0);
  const parts = [step.multiply_adds ? countNoun(step.multiply_adds, "multiply-add") : "", learned ? countNoun(learned, "weight") : ""];
  return parts.filter(Boolean).join(", ");
}
