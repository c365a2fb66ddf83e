// Shapes, parameters and multiply-adds of an attention layer, without any numbers in its matrices.

/**
 * @typedef {{ tokens: number, width: number, heads: number, keyHeads: number, split: "project" | "slice" }} LayerSizes
 *   width: d_model; keyHeads: a divisor of heads
 * @typedef {{ symbol: string, rows: number, columns: number }} Shape
 * @typedef {{ name: string, operands: Shape[], result: Shape, count: number, parameters: number, multiplyAdds: number }} ShapeStep
 *   count: how often the step is computed; parameters and multiplyAdds are totals of all of them
 */

export const LIMITS = { width: 16384, tokens: 8192, heads: 128 };

/** Return the numbers that divide a number, at most `largest`. @param {number} value @param {number} [largest] */
export function divisors(value, largest = value) {
  return Array.from({ length: Math.min(value, largest) }, (_, index) => index + 1).filter((each) => value % each === 0);
}

/** Return the steps of a layer, as `trace` in Python has them. @param {LayerSizes} sizes @returns {ShapeStep[]} */
export function layerSteps({ tokens, width, heads, keyHeads, split }) {
  const headWidth = width / heads;
  /** @type {(name: string, letter: string, count: number) => ShapeStep} */
  const projection = (name, letter, count) => {
    const inputs = split === "slice" ? width / count : width;
    return {
      name,
      operands: [
        { symbol: split === "slice" ? "slice of X" : "X", rows: tokens, columns: inputs },
        { symbol: `W_${letter}`, rows: inputs, columns: headWidth },
      ],
      result: { symbol: letter, rows: tokens, columns: headWidth },
      count,
      parameters: count * inputs * headWidth,
      multiplyAdds: count * tokens * inputs * headWidth,
    };
  };
  const products = heads * tokens * tokens * headWidth;
  return [
    projection("query", "Q", heads),
    projection("key", "K", keyHeads),
    projection("value", "V", keyHeads),
    {
      name: "scores",
      operands: [{ symbol: "Q", rows: tokens, columns: headWidth }, { symbol: "Kᵀ", rows: headWidth, columns: tokens }],
      result: { symbol: "S", rows: tokens, columns: tokens },
      count: heads,
      parameters: 0,
      multiplyAdds: products,
    },
    {
      name: "head_output",
      operands: [{ symbol: "A", rows: tokens, columns: tokens }, { symbol: "V", rows: tokens, columns: headWidth }],
      result: { symbol: "O", rows: tokens, columns: headWidth },
      count: heads,
      parameters: 0,
      multiplyAdds: products,
    },
    {
      name: "output",
      operands: [{ symbol: "C", rows: tokens, columns: width }, { symbol: "W_O", rows: width, columns: width }],
      result: { symbol: "Y", rows: tokens, columns: width },
      count: 1,
      parameters: width * width,
      multiplyAdds: tokens * width * width,
    },
  ];
}

/**
 * Return the totals of a layer. `exponentials`: how often the softmax calls exp.
 * @param {LayerSizes} sizes
 */
export function layerTotals(sizes) {
  const steps = layerSteps(sizes);
  /** @param {(step: ShapeStep) => number} of @param {(step: ShapeStep) => boolean} [which] */
  const sum = (of, which = () => true) => steps.filter(which).reduce((total, step) => total + of(step), 0);
  return {
    parameters: sum((step) => step.parameters),
    projections: sum((step) => step.multiplyAdds, (step) => step.parameters > 0),
    attention: sum((step) => step.multiplyAdds, (step) => step.parameters === 0),
    multiplyAdds: sum((step) => step.multiplyAdds),
    exponentials: sizes.heads * sizes.tokens ** 2,
    stored: 2 * sizes.keyHeads * sizes.tokens * (sizes.width / sizes.heads),
  };
}
