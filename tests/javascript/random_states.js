// Random states of layers: sequences of random changes, with the calculation of each state. Runs in node and in a browser.
import { ancestry } from "clearhead/ancestry.js";
import { arithmeticLines } from "clearhead/arithmetic.js";
import { calculate } from "clearhead/calculate.js";
import * as change from "clearhead/change_layer.js";
import { History } from "clearhead/history.js";
import { hiddenCells } from "clearhead/matrix_math.js";
import { jsonFile, tomlFile } from "clearhead/state_files.js";
import { readState, stateText } from "clearhead/state_link.js";
import { operandSymbol } from "clearhead/tracing.js";

const AFTER_WEIGHTS = ["head_output", "concat", "output"];
const WORDS = ["tea", "green", "the", "cat", "sings", "猫", "é", '"q"', "<b>", "token 1", "a.b", "\u007f"];

/** @param {number} seed @returns {() => number} numbers from 0 to 1 (mulberry32) */
export function generator(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

const pick = (random, entries) => entries[Math.floor(random() * entries.length)];
const editable = (calculation) => [...calculation.matrices.values()].filter((matrix) => matrix.path);

function randomCell(random, layer) {
  const matrix = pick(random, editable(calculate(layer)));
  const [row, column] = [matrix.values, matrix.values[0]].map((entries) => Math.floor(random() * entries.length));
  const value = matrix.kind === "mask" ? pick(random, [0, -Infinity]) : Math.round((random() * 6 - 3) * 1000) / 1000;
  return change.setCell(layer, matrix.path, row, column, value);
}

function randomWords(random, layer) {
  const side = pick(random, ["query", "key"]);
  const words = [...(side === "key" && layer.memory ? layer.memory : layer).tokens, ...WORDS];
  return change.setTokens(layer, Array.from({ length: 1 + Math.floor(random() * 8) }, () => pick(random, words)), side);
}

const CHANGES = [
  ...Array(6).fill(randomCell),
  randomWords,
  (random, layer) => change.setHeads(layer, pick(random, change.possibleHeads(layer))),
  (random, layer) => change.setKeyHeads(layer, pick(random, change.possibleKeyHeads(layer))),
  (random, layer) => change.setSplit(layer, pick(random, ["slice", "project"])),
  (random, layer) => change.setMask(layer, pick(random, ["none", "causal", "padding", "custom"]), Math.floor(random() * 4)),
  (random, layer) => change.toggleMaskCell(layer, 0, Math.floor(random() * (layer.memory ?? layer).tokens.length)),
  (random, layer) => change.setScaling(layer, random() < 0.7, pick(random, [null, null, 1, 0.25, 1.7])),
  (random, layer) => change.setSoftmax(layer, pick(random, ["rows", "rows", "columns"])),
  (random, layer) => change.setCross(layer, random() < 0.5),
  (random, layer) => change.useOutput(layer, random() < 0.7),
  (random, layer) => change.setPositions(layer, random() < 0.5),
  (random, layer) => (random() < 0.2 ? change.dropGiven(layer) : layer),
];

/** @param {Layer} start @param {() => number} random @param {number} count @returns {Layer} */
function changed(start, random, count) {
  let layer = start;
  for (let index = 0; index < count; index++) {
    const before = JSON.stringify(layer);
    const result = change.attempt(layer, (old) => pick(random, CHANGES)(random, old));
    if (JSON.stringify(layer) !== before) throw new Error("a change altered its argument");
    layer = result.layer;
  }
  return layer;
}

const finite = (values) => values.map((row) => row.map((value) => (value === -Infinity ? "-inf" : value)));

/** Return the state's numbers, and its files and arithmetic if `details` is set. */
function described(name, start, layer, details) {
  const calculation = calculate(layer);
  const link = stateText(start, layer);
  const read = readState(start, link);
  return {
    name,
    layer,
    link: link.length,
    read: read.message || (JSON.stringify(canonical(read.layer)) === JSON.stringify(canonical(layer)) ? "" : "other layer"),
    changes: changesOf(start, layer),
    steps: calculation.steps.map(({ id, name, head, formula, shapes, how, multiply_adds, values, hidden, operands }) => ({
      ...{ id, name, head, formula, shapes, how, multiply_adds, hidden },
      operands: operands.map((operand) => [operandSymbol(calculation, operand), operand.marks, operand.shift]),
      values: finite(values),
      arithmetic: details && values.map((row, index) => row.map((_, column) => arithmeticLines(calculation, id, index, column)[0])),
    })),
    ...(details && { toml: tomlFile(layer), json: JSON.parse(jsonFile(layer)) }),
  };
}

function changesOf(start, layer) {
  const history = new History(start);
  history.push(layer);
  return history.changes();
}

/** Keys in a fixed order, without optional parts that are empty. */
const canonical = (value) =>
  Array.isArray(value) || value === null || typeof value !== "object"
    ? value
    : Object.fromEntries(
        Object.keys(value)
          .sort()
          .filter((key) => value[key] !== null && JSON.stringify(value[key]) !== "{}")
          .map((key) => [key, canonical(value[key])]),
      );

/** @param {Record<string, Layer>} layers @param {number} count @param {number} seed @param {number} every details of every n-th state */
export function randomStates(layers, count, seed, every) {
  const random = generator(seed);
  return Array.from({ length: count }, (_, index) => {
    const [name, start] = Object.entries(layers)[index % Object.keys(layers).length];
    return described(name, start, changed(start, random, Math.floor(random() * 12)), index % every === 0);
  });
}

/**
 * Change every input cell, and return the cells that contradict the ancestry of a chosen cell: cells outside it that change
 * the chosen one, and cells inside it that do not.
 */
export function ancestryErrors(layers, count, seed) {
  const random = generator(seed);
  const errors = [];
  let checked = 0;
  for (let index = 0; index < count; index++) {
    const [name, start] = Object.entries(layers)[index % Object.keys(layers).length];
    let layer = dense(changed(start, random, 6), random);
    if (layer.softmax === "columns") layer = change.setMask(layer, "none");
    else if (index % 2) layer = randomMask(layer, random);
    const calculation = calculate(layer);
    const step = pick(random, [...calculation.steps, ...calculation.steps.filter(({ name }) => AFTER_WEIGHTS.includes(name))]);
    const row = Math.floor(random() * step.values.length);
    const column = Math.floor(random() * step.values[0].length);
    const hidden = hiddenCells(layer)?.[row];
    // the weight of a single key is 1, whatever its score
    const keys = layer.softmax === "columns" ? layer.tokens.length : (hidden ?? calculation.matrices.get("weights-1").columns).filter((cell) => cell !== true).length;
    if (keys < 2) continue;
    const ancestors = ancestry(calculation, step.id, row, column);
    // b_K adds the same number to all scores of a row (b_Q to those of a column), which softmax cancels
    const canceled = layer.softmax === "rows" ? "b_K" : "b_Q";
    for (const matrix of editable(calculation)) {
      if (matrix.id.startsWith(canceled)) continue;
      matrix.values.forEach((cells, otherRow) =>
        cells.forEach((value, otherColumn) => {
          const other = matrix.kind === "mask" ? (value ? 0 : -Infinity) : value + 0.37;
          const after = calculate(change.setCell(layer, matrix.path, otherRow, otherColumn, other)).matrices.get(step.id);
          const changes = after.values[row][column] !== step.values[row][column];
          const expected = ancestors.get(matrix.id)?.has(`${otherRow},${otherColumn}`) ?? false;
          checked++;
          if (changes !== expected) errors.push([name, step.id, row, column, matrix.id, otherRow, otherColumn, expected]);
        }),
      );
    }
  }
  return { errors, checked };
}

/** Hide a third of the cells, and leave the first two keys visible. */
function randomMask(layer, random) {
  let masked = change.setMask(layer, "none");
  for (let query = 0; query < layer.tokens.length; query++) {
    for (let key = 2; key < (layer.memory ?? layer).tokens.length; key++) {
      if (random() < 0.3) masked = change.toggleMaskCell(masked, query, key);
    }
  }
  return masked;
}

/** Fill all matrices with numbers other than 0, so that each cell has an effect. */
function dense(layer, random) {
  let filled = layer;
  for (const matrix of editable(calculate(layer))) {
    if (matrix.kind === "mask") continue;
    matrix.values.forEach((cells, row) =>
      cells.forEach((_, column) => {
        filled = change.setCell(filled, matrix.path, row, column, (random() < 0.5 ? -1 : 1) * (0.1 + random() * 0.4));
      }),
    );
  }
  return filled;
}
