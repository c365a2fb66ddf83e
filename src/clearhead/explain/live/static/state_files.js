// A layer as files: TOML, which `clearhead explain FILE` reads, and JSON with the keys of `clearhead explain --format json`.
import { arithmeticLines } from "clearhead/arithmetic.js";
import { calculate } from "clearhead/calculate.js";
import { hiddenCells, identity } from "clearhead/matrix_math.js";
import { operandSymbol } from "clearhead/tracing.js";

const BLANK = "_"; // a matrix that the text does not give
const PROJECTIONS = /** @type {("query" | "key" | "value")[]} */ (["query", "key", "value"]);
const COUNTING = "Heads, rows and columns are counted from 1.";

/** JSON escapes are valid in TOML; DEL and unpaired surrogates are not. @param {string} text */
const tomlText = (text) => JSON.stringify(text.toWellFormed()).replaceAll("\x7f", "\\u007f");

/** @param {any} value @param {string} [indent] @returns {string} a list of lists has one entry on each line */
function tomlValue(value, indent = "") {
  if (typeof value === "string") return tomlText(value);
  if (!Array.isArray(value)) return String(value);
  if (!value.some(Array.isArray)) return `[${value.map((entry) => tomlValue(entry)).join(", ")}]`;
  const entries = value.map((entry) => `${indent}  ${tomlValue(entry, `${indent}  `)},\n`);
  return `[\n${entries.join("")}${indent}]`;
}

/** The entry of a single head is not nested in a list. @template T @param {T[]} entries @returns {T | T[]} */
const unnested = (entries) => (entries.length === 1 ? entries[0] : entries);

/**
 * Return a TOML file. Softmax over columns has no key there, so its weights are given as numbers.
 * @param {Layer} layer @param {string} [title] @returns {string}
 */
export function tomlFile(layer, title = "An edited calculation") {
  const { memory, scaling, positions, embedding, biases } = layer;
  const hidden = hiddenCells(layer);
  const width = layer.weights.output.length;
  const mask = layer.mask.kind === "causal" ? "causal" : hidden?.map((row) => row.map((isHidden) => !isHidden));
  const tables = {
    "": {
      title,
      tokens: layer.tokens,
      x: embedding ? undefined : layer.x,
      positions: positions?.on ? (positions.sinusoidal ? "sinusoidal" : positions.values) : undefined,
      memory_tokens: memory?.tokens,
      memory: memory?.x,
      heads: layer.heads,
      kv_heads: layer.kv_heads,
      split: layer.split,
      mask,
      scale: scaling.on ? (scaling.scale ?? undefined) : "none",
      d_k: scaling.on ? (scaling.d_k ?? undefined) : undefined,
    },
    // a list, because an object moves words such as "2" to its front
    embedding: embedding?.vocabulary.map((word, index) => [word, embedding.values[index]]) ?? [],
    weights: {
      ...Object.fromEntries(PROJECTIONS.map((name) => [name, unnested(layer.weights[name])])),
      output: layer.use_output ? layer.weights.output : identity(width),
    },
    biases: {
      ...Object.fromEntries(PROJECTIONS.map((name) => [name, biases[name] && unnested(biases[name])])),
      output: layer.use_output ? biases.output : undefined,
    },
    given: givenTable(layer),
  };
  const note = layer.softmax === "columns" ? ["# softmax was over columns, so the weights are given"] : [];
  const parts = Object.entries(tables).map(([name, table]) => tableText(name, Array.isArray(table) ? table : Object.entries(table)));
  return `${[...note, ...parts.filter(Boolean)].join("\n")}`;
}

/** @param {string} name @param {[string, any][]} pairs keys and values @returns {string} */
function tableText(name, pairs) {
  const keys = pairs.filter(([, value]) => value !== undefined);
  if (!keys.length) return "";
  const lines = keys.map(([key, value]) => `${/^\w+$/.test(key) ? key : tomlText(key)} = ${tomlValue(value)}\n`);
  return `${name ? `[${name}]\n` : ""}${lines.join("")}`;
}

/** @param {Layer} layer @returns {Record<string, any>} matrices that are not computed, for each head or BLANK */
function givenTable(layer) {
  /** @type {Record<string, any>} */
  const table = {};
  for (const name of PROJECTIONS) {
    const count = name === "query" ? layer.heads : layer.kv_heads;
    const entries = Array.from({ length: count }, (_, index) => layer.given?.[`${name}-${index + 1}`] ?? BLANK);
    if (entries.some((entry) => entry !== BLANK)) table[name] = unnested(entries);
  }
  if (layer.softmax === "columns") {
    table.weights = unnested(calculate(layer).steps.filter((step) => step.name === "weights").map((step) => step.values));
  }
  return table;
}

/** Return JSON with everything that the calculation is computed from, and with every step. −∞ is the string "-inf".
 * @param {Layer} layer @param {string} [title] @returns {string} */
export function jsonFile(layer, title = "An edited calculation") {
  const calculation = calculate(layer);
  const document = {
    title,
    counting: COUNTING,
    tokens: layer.tokens,
    memory_tokens: (layer.memory ?? layer).tokens,
    heads: layer.heads,
    kv_heads: layer.kv_heads,
    split: layer.split,
    ...ingredients(calculation),
    steps: calculation.steps.map((step, index) => stepEntry(calculation, step, index)),
  };
  return `${JSON.stringify(document)}\n`;
}

/** @param {Calculation} calculation @returns {Record<string, any>} */
function ingredients({ layer, matrices, steps }) {
  /** @type {{ weights: Record<string, any>, biases: Record<string, any> }} */
  const learned = { weights: {}, biases: {} };
  const names = { Q: "query", K: "key", V: "value", O: "output" };
  for (const matrix of matrices.values()) {
    const [, kind, letter, head] = matrix.id.match(/^([Wb])_([QKVO])(?:-(\d))?$/) ?? [];
    if (!kind) continue;
    const table = kind === "W" ? learned.weights : learned.biases;
    const name = names[/** @type {keyof typeof names} */ (letter)];
    const entry = { symbol: matrix.symbol, origin: "from the layer's parameters", values: matrix.values };
    table[name] = head ? [...(table[name] ?? []), { head: Number(head), ...entry }] : entry;
  }
  const { on, scale, d_k } = layer.scaling;
  const mask = matrices.get("M");
  const isScaled = steps.some((step) => step.name === "scaled");
  return {
    x: matrices.get("input")?.values,
    memory: layer.memory?.x ?? null,
    mask: mask
      ? Array.from({ length: layer.heads }, (_, head) => ({ head: head + 1, symbol: "M", origin: "mask", values: finite(mask.values) }))
      : null,
    bias: null,
    scale: on && isScaled ? (scale ?? (d_k ?? layer.weights.query[0][0].length) ** -0.5) : 1,
    sinks: null,
    softcap: null,
    norms: {},
    rope: null,
    softmax: layer.softmax,
    ...learned,
  };
}

/** @param {number[][]} values @returns {(number | string)[][]} */
const finite = (values) => values.map((row) => row.map((value) => (value === -Infinity ? "-inf" : value)));

/** @param {Calculation} calculation @param {Step} step @param {number} index @returns {Record<string, any>} */
function stepEntry(calculation, step, index) {
  return {
    step: index + 1,
    name: step.name,
    head: step.head === null ? null : step.head + 1,
    formula: step.formula,
    origin: step.how === "input" || step.how === "given" ? step.how : "computed",
    note: "",
    operands: step.operands.map((operand) => operandSymbol(calculation, operand)),
    arithmetic: step.operands.length ? arithmeticLines(calculation, step.id, 0, 0) : [],
    shapes: step.shapes,
    shape: [step.values.length, step.values[0].length],
    multiply_adds: step.multiply_adds,
    values: finite(step.values),
  };
}
