// The shown steps of a calculation. Sections are updated in place, and created again if steps, shapes or labels differ.

import { create } from "clearhead/elements.js";
import { keyHead } from "clearhead/head_steps.js";
import { cellPosition } from "clearhead/matrix_table.js";
import { maskStep, StepSection } from "clearhead/step_section.js";

/** @typedef {{ step: Step, position: number }} ShownStep position among all steps, counted from 1 */

/**
 * Return the steps that are shown. The name "mask" selects M.
 * @param {Calculation} calculation @param {{ steps?: string[], heads?: number[] }} selection heads count from 1
 * @returns {ShownStep[]}
 */
export function shownSteps({ steps, matrices, layer }, { steps: names, heads }) {
  const keyHeads = heads?.map((head) => keyHead(head - 1, layer) + 1);
  /** @param {Step} step */
  const isShown = ({ name, head }) =>
    (!names || names.includes(name)) &&
    (!heads || head === null || Boolean((name === "key" || name === "value" ? keyHeads : heads)?.includes(head + 1)));
  const mask = matrices.get("M");
  const first = steps.findIndex(({ name }) => name === "masked");
  return steps.flatMap((step, index) => {
    const shown = isShown(step) ? [{ step, position: index + 1 }] : [];
    return index === first && mask && names?.includes("mask") ? [{ step: maskStep(mask), position: index + 1 }, ...shown] : shown;
  });
}

/** Return a text that changes if the sections must be created again. @param {ShownStep[]} shown @param {Calculation} calculation */
function signature(shown, { matrices, layer }) {
  const parts = shown.map(({ step, position }) => [
    position,
    step.id,
    step.how,
    step.rows,
    step.columns,
    step.operands.map(({ id, columns }) => [id, columns, matrices.get(id)?.symbol, matrices.get(id)?.values.length, matrices.get(id)?.columns]),
  ]);
  return JSON.stringify([parts, layer.softmax]);
}

/** All sections of a live calculation. */
export class StepList {
  /** @param {import("clearhead/step_section.js").SectionOptions} options */
  constructor(options) {
    this.options = options;
    /** @type {HTMLElement} */
    this.element = create("div", { class: "steps" });
    /** @type {StepSection[]} */
    this.sections = [];
    this.signature = "";
  }

  /** @param {ShownStep[]} shown @param {Calculation} calculation */
  show(shown, calculation) {
    const current = signature(shown, calculation);
    if (current === this.signature) {
      this.sections.forEach((section, index) => section.update(shown[index].step, calculation));
      return;
    }
    this.signature = current;
    const focused = this.focused();
    this.sections = shown.map(({ step, position }) => new StepSection(step, position, calculation, this.options));
    const none = shown.length ? [] : [create("p", {}, "The calculation now has none of the steps that this page shows.")];
    this.element.replaceChildren(...this.sections.map(({ element }) => element), ...none);
    this.element.dispatchEvent(new Event("stepschange", { bubbles: true }));
    if (focused) this.focus(focused);
  }

  focused() {
    const position = cellPosition(document.activeElement);
    const section = position && this.sections.find(({ tables }) => tables.includes(position.table));
    return section && { id: section.id, table: section.tables.indexOf(position.table), row: position.row, column: position.column };
  }

  /** @param {{ id: string, table: number, row: number, column: number }} focused */
  focus({ id, table, row, column }) {
    const section = this.sections.find((each) => each.id === id);
    section?.tables[table]?.cells[row]?.[column]?.focus({ preventScroll: true });
  }
}
