// Queries, keys and values of several heads in two ways: one product after another, and one product for all. In float32.

import { normalNumbers } from "clearhead/widget_parts.js";

/**
 * @typedef {{ tokens: number, width: number, heads: number }} Sizes width: d_model
 * @typedef {{ sizes: Sizes, x: Float32Array, weights: Float32Array[], wide: Float32Array }} Problem
 *   weights: W_Q, W_K and W_V of head 1, then of head 2, and so on; wide: all of them side by side
 */

/** Return normal numbers that are the same on every machine. @param {number} count @param {number} seed @param {number} scale */
function drawn(count, seed, scale) {
  const draw = normalNumbers(seed);
  return Float32Array.from({ length: count }, () => draw() * scale);
}

/** Draw X and the weights. @param {Sizes} sizes @returns {Problem} */
export function makeProblem(sizes) {
  const { tokens, width, heads } = sizes;
  const headWidth = width / heads;
  const count = 3 * heads;
  const weights = Array.from({ length: count }, (_, index) => drawn(width * headWidth, index + 1, width ** -0.5));
  const wide = new Float32Array(width * count * headWidth);
  weights.forEach((matrix, index) => {
    for (let row = 0; row < width; row += 1) {
      wide.set(matrix.subarray(row * headWidth, (row + 1) * headWidth), (row * count + index) * headWidth);
    }
  });
  return { sizes, x: drawn(tokens * width, 0, 1), weights, wide };
}

/**
 * Return the product of [rows, inner] and [inner, columns].
 * @param {Float32Array} left
 * @param {Float32Array} right
 * @param {number} rows
 * @param {number} inner
 * @param {number} columns
 */
export function multiply(left, right, rows, inner, columns) {
  const result = new Float32Array(rows * columns);
  for (let row = 0; row < rows; row += 1) {
    const start = row * columns;
    for (let index = 0; index < inner; index += 1) {
      const factor = left[row * inner + index];
      const first = index * columns;
      for (let column = 0; column < columns; column += 1) result[start + column] += factor * right[first + column];
    }
  }
  return result;
}

/** Return Q, K and V of each head, with one product after another. @param {Problem} problem @returns {Float32Array[]} */
export function loopOverHeads({ sizes: { tokens, width, heads }, x, weights }) {
  return weights.map((matrix) => multiply(x, matrix, tokens, width, width / heads));
}

/** Return Q, K and V of all heads side by side, with one product. @param {Problem} problem @returns {Float32Array} */
export const oneProduct = ({ sizes: { tokens, width }, x, wide }) => multiply(x, wide, tokens, width, 3 * width);

/** Return the largest difference between matrices and the same columns of a wide matrix. @param {Float32Array[]} parts @param {Float32Array} whole @param {number} tokens */
export function largestDifference(parts, whole, tokens) {
  const stride = whole.length / tokens;
  let largest = 0;
  parts.forEach((part, index) => {
    const columns = part.length / tokens;
    for (let row = 0; row < tokens; row += 1) {
      for (let column = 0; column < columns; column += 1) {
        const difference = Math.abs(part[row * columns + column] - whole[row * stride + index * columns + column]);
        largest = Math.max(largest, difference);
      }
    }
  });
  return largest;
}
