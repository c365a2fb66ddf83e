// One step as a section: heading, formula, sentence, shapes, cost, the arithmetic of a cell, and its matrices.

import { arithmeticLines } from "clearhead/arithmetic.js";
import { create, createButton } from "clearhead/elements.js";
import { mathOf } from "clearhead/formula_math.js";
import { MatrixTable } from "clearhead/matrix_table.js";
import { sampleCell } from "clearhead/sample_cell.js";
import { stepCost, stepHeading, stepSentence } from "clearhead/step_wording.js";

/** Operator between a step's operands, and before its result. @type {Record<string, [string, string]>} */
const OPERATORS = {
  product: ["×", "="],
  slice: ["", "→"],
  scaled: ["", "→"],
  masked: ["+", "="],
  sum: ["+", "="],
  lookup: ["", "→"],
  softmax: [";", "→"],
  concat: ["|", "="],
  copy: ["", "="],
};

/**
 * @typedef {{
 *   digits: number, level: number, anchor: (id: string) => string, origin: (matrix: Matrix) => string,
 *   note: (step: Step) => string, cells: (step: Step) => [number, number][] | undefined, compute: () => void
 * }} SectionOptions
 */

/** Set a text if it changed, so that nothing is rendered again without need. @param {Element} element @param {string} text */
const setText = (element, text) => void (element.textContent === text || (element.textContent = text));

/** A step on the page. */
export class StepSection {
  /** @param {Step} step @param {number} position counted from 1 @param {Calculation} calculation @param {SectionOptions} options */
  constructor(step, position, calculation, options) {
    this.id = step.id;
    this.options = options;
    /** @type {MatrixTable[]} */
    this.tables = [...step.operands, { id: matrixId(step), marks: "result", transposed: false }].map(
      (shown) => new MatrixTable(calculation, shown, options),
    );
    const anchor = options.anchor(step.id);
    this.heading = create("span", { class: "heading" });
    this.formula = create("div", { class: "formula", role: "math" });
    this.sentence = create("p", { class: "sentence" });
    this.shapes = create("span");
    this.cost = create("span", { class: "cost" });
    this.samples = create("div", { class: "samples" });
    this.arithmetic = create("p", { class: "arithmetic", "aria-live": "polite" });
    const title = create(`h${options.level}`, { id: `${anchor}-heading`, class: "step-heading" }, create("span", { class: "number" }, String(position)), " ", this.heading);
    const compute = createButton(`Compute ${step.symbol} from its formula`, options.compute, { class: "compute" });
    /** @type {HTMLElement} */
    this.element = create(
      "section",
      { id: anchor, tabindex: -1, class: "step", "data-step": step.id, "aria-labelledby": `${anchor}-heading` },
      title,
      this.formula,
      this.sentence,
      step.how === "given" && compute,
      create("p", { class: "shapes" }, this.shapes, this.cost),
      this.samples,
      this.arithmetic,
      create("div", { class: "matrices" }, ...this.tables.map((table, index) => this.factor(step, table, index))),
    );
    this.describe(step, calculation);
  }

  /** @param {Step} step @param {MatrixTable} table @param {number} index */
  factor(step, table, index) {
    const [between, beforeResult] = OPERATORS[step.how] ?? ["", ""];
    const count = step.operands.length;
    const sign = index === count ? (count ? beforeResult : "") : index === 0 ? "" : index === 2 && step.name !== "concat" ? "+" : between;
    return create("div", { class: "factor" }, Boolean(sign) && create("span", { class: "sign", "aria-hidden": "true" }, sign), table.element);
  }

  /** Show another calculation with the same steps and shapes. @param {Step} step @param {Calculation} calculation */
  update(step, calculation) {
    for (const table of this.tables) table.update(calculation);
    this.describe(step, calculation);
  }

  /** @param {Step} step @param {Calculation} calculation */
  describe(step, calculation) {
    setText(this.heading, stepHeading(step, calculation.layer));
    if (this.formula.getAttribute("aria-label") !== step.formula) {
      this.formula.setAttribute("aria-label", step.formula);
      this.formula.replaceChildren(mathOf(step.formula, true));
    }
    setText(this.sentence, [stepSentence(step, calculation), this.options.note(step)].filter(Boolean).join(" "));
    setText(this.shapes, step.shapes);
    setText(this.cost, stepCost(step, calculation));
    const cells = this.options.cells(step) ?? sampleCell(step, calculation);
    const lines = cells.flatMap(([row, column]) => arithmeticLines(calculation, step.id, row, column, this.options.digits));
    if (lines.join("\n") === [...this.samples.children].map((line) => line.textContent).join("\n")) return;
    this.samples.replaceChildren(...lines.map((line) => create("p", { class: "sample" }, line)));
  }

  /** @param {string} text */
  sayArithmetic(text) {
    setText(this.arithmetic, text);
  }
}

/** Return the id of the matrix that a section shows as its result: M is not a step of the calculation. @param {Step} step */
const matrixId = (step) => (step.name === "mask" ? "M" : step.id);

/** Return M as a step. @param {Matrix} matrix @returns {Step} */
export function maskStep(matrix) {
  const shapes = `(${matrix.values.length}, ${matrix.values[0].length})`;
  return { ...matrix, id: "mask", name: "mask", head: null, formula: "M", shapes, how: "input", multiply_adds: 0, operands: [] };
}
