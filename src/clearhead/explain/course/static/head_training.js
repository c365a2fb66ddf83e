// One attention head that learns a task from random weights: forward pass, gradients and steps.
//
// A problem has four keys with different colors, each with a letter. The query of a color must give the letter of the key
// with this color. The output of the head, O = A V, is the logits of the letters.

import { product, softmaxRows, sum, transpose, zeros } from "clearhead/matrix_math.js";
import { normalNumbers } from "clearhead/widget_parts.js";

/**
 * @typedef {{ query: number[][], key: number[][], value: number[][] }} Weights query: [colors, d_k], key: [colors + letters, d_k],
 *   value: [colors + letters, letters]
 * @typedef {{ colors: number[], letters: number[] }} Problem color and letter of each key
 * @typedef {{ weights: number[][], probabilities: number[][], loss: number }} Result weights: of the queries of all colors
 */

export const COLORS = ["red", "green", "blue", "gold"];
export const LETTERS = ["A", "B", "C", "D"];
const KEY_WIDTH = 4; // d_k
const INITIAL_SPREAD = 0.5; // standard deviation of the random weights
const PROBLEMS_PER_STEP = 8;
const FEATURES = COLORS.length + LETTERS.length;

/** Draw random weights. @param {number} seed @returns {Weights} */
export function randomWeights(seed) {
  const draw = normalNumbers(seed);
  /** @param {number} rows @param {number} columns */
  const matrix = (rows, columns) => zeros(rows, columns).map((row) => row.map(() => INITIAL_SPREAD * draw()));
  return { query: matrix(COLORS.length, KEY_WIDTH), key: matrix(FEATURES, KEY_WIDTH), value: matrix(FEATURES, LETTERS.length) };
}

/** Draw the problems of a step. The same seed and step give the same problems. @param {number} seed @param {number} step @returns {Problem[]} */
export function problemsOf(seed, step) {
  const draw = normalNumbers(7919 * seed + step);
  return Array.from({ length: PROBLEMS_PER_STEP }, () => ({
    colors: COLORS.map((_, color) => ({ color, rank: draw() })).sort((a, b) => a.rank - b.rank).map(({ color }) => color),
    letters: COLORS.map(() => (draw() > 0 ? 2 : 0) + (draw() > 0 ? 1 : 0)),
  }));
}

/** Return one row per key: a 1 in the column of its color, and a 1 in the column of its letter. @param {Problem} problem */
const keyRows = ({ colors, letters }) =>
  colors.map((color, index) => Array.from({ length: FEATURES }, (_, column) => Number(column === color || column === COLORS.length + letters[index])));

/** Return the letter that the query of each color must give. @param {Problem} problem */
export const rightLetters = ({ colors, letters }) => COLORS.map((_, color) => letters[colors.indexOf(color)]);

/** @param {number[][]} values @param {number} factor */
const scaled = (values, factor) => values.map((row) => row.map((value) => value * factor));

/** Compute the head on one problem, with all steps that the gradients need. @param {Weights} weights @param {Problem} problem */
function forward(weights, problem) {
  const x = keyRows(problem);
  const keys = product(x, weights.key);
  const values = product(x, weights.value);
  // the input of a query is a 1 in the column of its color, so the queries are the rows of W_Q
  const attention = softmaxRows(scaled(product(weights.query, transpose(keys)), KEY_WIDTH ** -0.5));
  const probabilities = softmaxRows(product(attention, values));
  const right = rightLetters(problem);
  const loss = -right.reduce((total, letter, query) => total + Math.log(Math.max(probabilities[query][letter], Number.MIN_VALUE)), 0) / right.length;
  return { x, keys, values, attention, probabilities, right, loss };
}

/** Return the attention weights, the probabilities of the letters and the loss. @param {Weights} weights @param {Problem} problem @returns {Result} */
export function runHead(weights, problem) {
  const { attention, probabilities, loss } = forward(weights, problem);
  return { weights: attention, probabilities, loss };
}

/** Return the gradients of the loss of one problem. @param {Weights} weights @param {Problem} problem @returns {Weights} */
function problemGradients(weights, problem) {
  const { x, keys, values, attention, probabilities, right } = forward(weights, problem);
  const outputs = probabilities.map((row, query) => row.map((value, letter) => (value - Number(letter === right[query])) / right.length));
  const toWeights = product(outputs, transpose(values));
  // softmax: a weight rises if its key helps more than the row does on average
  const scores = attention.map((row, query) => {
    const mean = row.reduce((total, weight, key) => total + weight * toWeights[query][key], 0);
    return row.map((weight, key) => (weight * (toWeights[query][key] - mean)) / KEY_WIDTH ** 0.5);
  });
  return {
    query: product(scores, keys),
    key: product(transpose(x), product(transpose(scores), weights.query)),
    value: product(transpose(x), product(transpose(attention), outputs)),
  };
}

/**
 * Return the mean loss of some problems and its gradients.
 * @param {Weights} weights @param {Problem[]} problems @returns {{ loss: number, gradients: Weights }}
 */
export function gradientsOf(weights, problems) {
  const parts = problems.map((problem) => problemGradients(weights, problem));
  /** @param {keyof Weights} name */
  const mean = (name) => scaled(parts.map((part) => part[name]).reduce(sum), 1 / parts.length);
  const loss = problems.reduce((total, problem) => total + forward(weights, problem).loss, 0) / problems.length;
  return { loss, gradients: { query: mean("query"), key: mean("key"), value: mean("value") } };
}

/** Move every weight against its gradient. @param {Weights} weights @param {Weights} gradients @param {number} rate learning rate @returns {Weights} */
export const stepDown = (weights, gradients, rate) => ({
  query: sum(weights.query, scaled(gradients.query, -rate)),
  key: sum(weights.key, scaled(gradients.key, -rate)),
  value: sum(weights.value, scaled(gradients.value, -rate)),
});

/** Return the score of every query color with every key color: W_Q W_K^T / √d_k. @param {Weights} weights */
export const colorScores = ({ query, key }) => scaled(product(query, transpose(key.slice(0, COLORS.length))), KEY_WIDTH ** -0.5);
