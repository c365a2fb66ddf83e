// Output of a layer as a sum with one part for each head: Y = O₁ · (rows of W_O) + O₂ · (rows of W_O) + …

import { calculate } from "clearhead/calculate.js";
import { create } from "clearhead/elements.js";
import { product, sum, zeros } from "clearhead/matrix_math.js";
import { createHandle, createMatrix, createToggle, formatNumber } from "clearhead/widget_parts.js";

/** @typedef {{ head: number, output: number[][], weight: number[][], part: number[][] }} HeadPart */

/** Return the part of each head in Y. @param {Calculation} calculation @returns {HeadPart[]} */
export function headParts({ layer, steps }) {
  const outputs = steps.filter((step) => step.name === "head_output");
  let first = 0;
  return outputs.map(({ values }, head) => {
    const weight = layer.weights.output.slice(first, (first += values[0].length));
    return { head, output: values, weight, part: product(values, weight) };
  });
}

/** Return a matrix of zeros with the shape of another one. @param {number[][]} matrix */
const zerosLike = (matrix) => zeros(matrix.length, matrix[0].length);

/** @param {number[][]} matrix */
const dimensions = (matrix) => matrix[0].map((_, index) => String(index + 1));

/** @param {HTMLElement} element @param {{ layer: Layer }} options */
export function mount(element, { layer }) {
  const calculation = calculate(layer);
  const parts = headParts(calculation);
  const y = /** @type {Matrix} */ (calculation.matrices.get("output"));
  const largest = Math.max(...[...parts.flatMap(({ part }) => part), ...y.values].flat().map(Math.abs));
  const used = new Set(parts.map(({ head }) => head));
  const equation = create("div", { class: "tables parts" });
  const say = create("p", { class: "say", role: "status" });

  /** Sum over the heads that are switched on. */
  const total = () => parts.filter(({ head }) => used.has(head)).reduce((matrix, { part }) => sum(matrix, part), zerosLike(y.values));

  /** @param {string} name @param {string} caption @param {number[][]} values @param {string[]} rows labels @param {boolean} [off] */
  function matrix(name, caption, values, rows, off = false) {
    const figure = createMatrix(`${caption} (${values.length}, ${values[0].length})`, { rows, columns: dimensions(values), values, limit: largest });
    figure.dataset.matrix = name;
    figure.classList.toggle("off", off);
    return figure;
  }

  /** Create O × (rows of W_O) = part of one head. @param {HeadPart} headPart @param {number} index */
  function equationOf({ head, output, weight, part }, index) {
    const off = !used.has(head);
    const first = index * weight.length + 1;
    const rows = weight.map((_, row) => String(first + row));
    return create(
      "div",
      { class: "factor" },
      matrix(`output-${head + 1}`, `O${head + 1}`, output, layer.tokens, off),
      "×",
      matrix(`rows-${head + 1}`, `rows ${rows[0]} to ${rows.at(-1)} of W_O`, off ? zerosLike(weight) : weight, rows, off),
      "=",
      matrix(`part-${head + 1}`, `part of head ${head + 1}`, off ? zerosLike(part) : part, layer.tokens, off),
    );
  }

  function show() {
    const result = total();
    equation.replaceChildren(...parts.map(equationOf), create("div", { class: "factor" }, "sum of the parts =", matrix("sum", "Y", result, layer.tokens)));
    const difference = Math.max(...result.flatMap((row, i) => row.map((value, j) => Math.abs(value - y.values[i][j]))));
    const removed = parts.filter(({ head }) => !used.has(head)).map(({ head }) => `head ${head + 1}`);
    say.textContent = removed.length
      ? `Without ${removed.join(" and ")}, Y changes by at most ${formatNumber(difference)}.`
      : `The sum equals C W_O; the largest difference is ${difference < 1e-12 ? 0 : difference.toExponential(1)}.`;
    handle.announce();
  }

  const boxes = parts.map(({ head }) =>
    createToggle(`head ${head + 1}`, true, (checked) => {
      if (checked) used.add(head);
      else used.delete(head);
      show();
    }),
  );
  const handle = createHandle(() => ({ heads: used.size }));
  element.append(create("div", { class: "controls", role: "group", "aria-label": "Heads in the sum" }, ...boxes), equation, say);
  show();
  return handle;
}
