// Products, softmax and other operations on matrices, which are lists of rows in float64.

/** @param {number[][]} values @returns {string} such as "(8, 2)" */
export const shapeText = (values) => `(${values.length}, ${values[0].length})`;

/** @template T @param {T[][]} values @returns {T[][]} */
export const transpose = (values) => values[0].map((_, column) => values.map((row) => row[column]));

/** @param {number[][]} values @param {number} first @param {number} end @returns {number[][]} columns first to end - 1 */
export const columnsOf = (values, first, end) => values.map((row) => row.slice(first, end));

/** @param {number} rows @param {number} columns @returns {number[][]} */
export const zeros = (rows, columns) => Array.from({ length: rows }, () => Array(columns).fill(0));

/** @param {number} size @returns {number[][]} */
export const identity = (size) => zeros(size, size).map((row, index) => row.with(index, 1));

/** Join matrices column by column. @param {number[][][]} parts @returns {number[][]} */
export const concatenate = (parts) => parts[0].map((_, row) => parts.flatMap((part) => part[row]));

/** @param {number[][]} left @param {number[][]} right @returns {number[][]} */
export function product(left, right) {
  const width = right[0].length;
  return left.map((row) => {
    const sums = Array(width).fill(0);
    row.forEach((factor, index) => {
      const other = right[index];
      for (let column = 0; column < width; column++) sums[column] += factor * other[column];
    });
    return sums;
  });
}

/** @param {number[][]} left @param {number[][]} right @returns {number[][]} */
export const sum = (left, right) => left.map((row, index) => row.map((value, column) => value + right[index][column]));

/** Apply softmax to each row. A row of −∞, whose query attends to no key, gives 0. @param {number[][]} values */
export function softmaxRows(values) {
  return values.map((row) => {
    const largest = Math.max(...row);
    if (largest === -Infinity) return row.map(() => 0);
    const powers = row.map((value) => Math.exp(value - largest)); // at most 1, so no power overflows
    const total = powers.reduce((left, right) => left + right, 0);
    return powers.map((power) => power / total);
  });
}

/** Apply softmax to each column, a usual mistake: the rows then do not sum to 1. @param {number[][]} values */
export const softmaxColumns = (values) => transpose(softmaxRows(transpose(values)));

/**
 * Return sines in columns 1, 3 … and cosines in columns 2, 4 …, as `clearhead.nn.sinusoidal`. Positions count from 0.
 * @param {number} rows @param {number} width @returns {number[][]}
 */
export const sinusoidal = (rows, width) =>
  zeros(rows, width).map((row, position) =>
    row.map((_, column) => {
      const frequency = 10_000 ** (-(column - (column % 2)) / width);
      return Math.sin(position * frequency + (column % 2) * (Math.PI / 2));
    }),
  );

/**
 * Return which keys each query may not attend to, or null without a mask.
 * @param {Layer} layer @returns {boolean[][] | null}
 */
export function hiddenCells(layer) {
  const keys = (layer.memory ?? layer).tokens.length;
  const { kind, padding, hidden } = layer.mask;
  if (kind === "none") return null;
  if (kind === "custom" && hidden) return hidden;
  return layer.tokens.map((_, query) =>
    Array.from({ length: keys }, (_, key) => (kind === "causal" ? key > query : key >= keys - padding)),
  );
}
