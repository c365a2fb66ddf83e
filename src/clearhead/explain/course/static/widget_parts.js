// Controls, tables and random numbers that the widgets of the course share.

import { create } from "clearhead/elements.js";
import { formatNumber as formatPlain, MINUS } from "clearhead/number_format.js";

/** @typedef {import("clearhead/elements.js").Child} Child */

/**
 * Return what a widget gives to the questions: its value, and a function that reports changes.
 * @template T
 * @param {() => T} value
 */
export function createHandle(value) {
  /** @type {(() => void)[]} */
  const listeners = [];
  return {
    value,
    /** @param {() => void} listener */
    onChange: (listener) => void listeners.push(listener),
    announce: () => listeners.forEach((listener) => listener()),
  };
}

/**
 * Create a slider with its label and value.
 * @param {string} label
 * @param {{ min: number, max: number, step: number, value: number, text?: (value: number) => string }} range
 * @param {(value: number) => void} act
 * @returns {{ element: HTMLElement, set: (value: number) => void }}
 */
export function createSlider(label, { min, max, step, value, text = String }, act) {
  const input = create("input", { type: "range", min, max, step, value, "aria-valuetext": text(value) });
  const shown = create("output", {}, text(value));
  const show = () => {
    shown.textContent = text(Number(input.value));
    input.setAttribute("aria-valuetext", shown.textContent);
  };
  input.addEventListener("input", () => {
    show();
    act(Number(input.value));
  });
  return {
    element: create("label", {}, `${label} `, input, " ", shown),
    set: (next) => {
      input.value = String(next);
      show();
    },
  };
}

/**
 * Create a check box with its label.
 * @param {string} label
 * @param {boolean} checked
 * @param {(checked: boolean) => void} act
 */
export function createToggle(label, checked, act) {
  const input = create("input", { type: "checkbox", checked });
  input.addEventListener("change", () => act(input.checked));
  return create("label", {}, input, ` ${label}`);
}

/**
 * Create a list of choices with its label.
 * @param {string} label
 * @param {string[]} texts
 * @param {number} chosen
 * @param {(index: number) => void} act
 */
export function createSelect(label, texts, chosen, act) {
  const select = create("select", { class: "button" }, ...texts.map((text, index) => create("option", { selected: index === chosen }, text)));
  select.addEventListener("change", () => act(select.selectedIndex));
  return create("label", {}, `${label} `, select);
}

/** Return a number with a fixed count of digits and a minus sign. @param {number} value @param {number} [digits] */
export const formatNumber = (value, digits = 2) => formatPlain(value, digits).replace("-", MINUS);

/**
 * Create a matrix as a table whose cells are shaded by their value.
 * @param {string} caption
 * @param {{ rows: string[], columns: string[], values: number[][], digits?: number, limit?: number,
 *   cellClass?: (row: number, column: number) => string, rowClass?: (row: number) => string }} matrix limit: value of the darkest shade
 */
export function createMatrix(caption, { rows, columns, values, digits = 2, limit, cellClass, rowClass }) {
  const largest = limit ?? Math.max(1e-9, ...values.flat().filter(Number.isFinite).map(Math.abs));
  const head = create("tr", {}, create("td"), ...columns.map((label) => create("th", { scope: "col" }, create("bdi", {}, label))));
  head.firstChild.style.background = "none";
  const body = values.map((cells, row) => {
    const made = cells.map((value, column) => {
      const cell = create("td", { class: cellClass?.(row, column) || undefined }, formatNumber(value, digits));
      const shade = Number.isFinite(value) ? Math.min(1, Math.abs(value) / largest) : 0;
      cell.style.setProperty(value < 0 ? "--cool" : "--warm", `${Math.round(100 * shade)}%`);
      return cell;
    });
    return create("tr", { class: rowClass?.(row) || undefined }, create("th", { scope: "row" }, create("bdi", {}, rows[row])), ...made);
  });
  const table = create("table", {}, create("thead", {}, head), create("tbody", {}, ...body));
  const scroll = create("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": caption }, table);
  return create("figure", {}, create("figcaption", {}, caption), scroll);
}

/**
 * Return a function that draws standard normal numbers. The same seed gives the same numbers.
 * @param {number} seed
 */
export function normalNumbers(seed) {
  let state = seed >>> 0;
  const uniform = () => {
    state = (state + 0x6d2b79f5) >>> 0; // mulberry32, a generator of 32-bit numbers
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  return () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
}

/** @param {number[]} first @param {number[]} second */
export const dotProduct = (first, second) => first.reduce((sum, value, index) => sum + value * second[index], 0);

/** @param {number[]} vector */
export const vectorLength = (vector) => Math.sqrt(dotProduct(vector, vector));
