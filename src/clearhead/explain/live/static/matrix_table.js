// One matrix as a table: labels, numbers shaded by sign and size, and row sums, entropies and bars next to weights.

import { create, visibleToken } from "clearhead/elements.js";
import { mathOf } from "clearhead/formula_math.js";
import { transpose } from "clearhead/matrix_math.js";
import { MINUS, NumberFormat, formatNumber } from "clearhead/number_format.js";

/** @typedef {{ id: string, row: number, column: number }} CellAddress counted from 0, in the matrix as it is stored */
/** @typedef {{ id: string, marks: string, transposed: boolean, columns?: [number, number] }} Shown */

const MASKED = "·";
const CHANGED_MS = 1500; // then the mark of a changed number fades
const SMALLEST_CHANGE = 1e-12; // relative; smaller differences are rounding

/** @type {WeakMap<Element, { table: MatrixTable, row: number, column: number }>} */
const positions = new WeakMap();

/** Return the table of a cell and its row and column there. @param {EventTarget | null} target */
export function cellPosition(target) {
  const cell = target instanceof Element ? target.closest("td") : null;
  return (cell && positions.get(cell)) ?? undefined;
}

/** @type {WeakMap<number[][], string[][]>} */
const texts = new WeakMap(); // several tables show the same matrix

/** Return the texts of a matrix's numbers. @param {number[][]} values @param {number} digits */
function textsOf(values, digits) {
  const known = texts.get(values);
  if (known) return known;
  const format = new NumberFormat(values, digits);
  const made = values.map((row) => row.map((value) => format.signed(value)));
  texts.set(values, made);
  return made;
}

/** @param {number} one @param {number} other */
const differ = (one, other) => one !== other && !(Math.abs(one - other) <= SMALLEST_CHANGE * Math.max(1, Math.abs(one)));

/** A table of one matrix, as an operand of a step or as its result. */
export class MatrixTable {
  /**
   * @param {Calculation} calculation
   * @param {Shown} shown how the step reads the matrix; `marks` is "result" for the step's own matrix
   * @param {{ digits: number, origin: (matrix: Matrix) => string }} options
   */
  constructor(calculation, shown, { digits, origin }) {
    this.calculation = calculation;
    this.shown = shown;
    this.digits = digits;
    this.originOf = origin;
    const matrix = this.matrix(calculation);
    this.isEditable = Boolean(matrix.path);
    this.isMask = matrix.kind === "mask";
    this.hasSums = shown.marks === "result" && shown.id.startsWith("weights-");
    const view = this.view(matrix);
    this.symbol = view.symbol;
    this.values = view.values;
    this.hidden = view.hidden;
    /** @type {HTMLTableCellElement[][]} */
    this.cells = view.values.map((row, index) => row.map((_, column) => this.cell(index, column)));
    /** @type {{ sum: HTMLElement, entropy: HTMLElement, bar: HTMLElement }[]} */
    this.sums = this.hasSums ? this.cells.map(statisticCells) : [];
    /** @type {HTMLElement[]} */
    this.columnSums = this.hasSums && calculation.layer.softmax === "columns" ? view.columns.map(() => create("td", { class: "sum" })) : [];
    this.origin = create("span", { class: "origin" });
    this.table = this.tableElement(view);
    /** @type {HTMLElement} */
    this.element = create(
      "figure",
      {},
      create(
        "figcaption",
        {},
        create("span", { role: "math", "aria-label": view.symbol }, mathOf(view.symbol)),
        " ",
        create("span", { class: "shape" }, view.shape),
        " ",
        this.origin,
      ),
      create("div", { class: "scroll" }, this.table),
    );
    this.fill(calculation);
  }

  /** @param {Calculation} calculation */
  matrix = (calculation) => /** @type {Matrix} */ (calculation.matrices.get(this.shown.id));

  /** Return the matrix as the step reads it: transposed, or some of its columns. @param {Matrix} matrix */
  view(matrix) {
    const { transposed, columns } = this.shown;
    let { symbol, values, rows, columns: names, hidden } = matrix;
    let texts = textsOf(values, this.digits);
    if (columns) {
      const [first, end] = columns;
      symbol += end - first === 1 ? `[column ${end}]` : `[columns ${first + 1} to ${end}]`;
      [values, names] = [values.map((row) => row.slice(...columns)), names.slice(0, end - first)];
      texts = textsOf(values, this.digits);
    }
    if (transposed) [symbol, values, texts, rows, names] = [`${symbol}ᵀ`, transpose(values), transpose(texts), names, rows];
    return { symbol, values, texts, rows, columns: names, hidden: transposed || columns ? null : hidden, shape: `(${values.length}, ${values[0].length})` };
  }

  /** @param {{ symbol: string, shape: string, rows: string[], columns: string[] }} view @returns {HTMLTableElement} */
  tableElement({ symbol, shape, rows, columns }) {
    const extra = this.hasSums ? [["sum", "sum of the row"], ["entropy", "entropy of the row in nats"], ["share", "share of each key"]] : [];
    const heads = [...columns.map((name) => header(name, "col")), ...extra.map(([text, title]) => create("th", { scope: "col", title }, text))];
    const body = this.cells.map((cells, row) => create("tr", {}, header(rows[row], "row"), ...cells, ...Object.values(this.sums[row] ?? {})));
    const foot = this.columnSums.length ? [create("tfoot", {}, create("tr", {}, create("th", { scope: "row" }, "sum"), ...this.columnSums))] : [];
    const use = this.isMask ? ": Space shows or hides a key" : this.isEditable ? ": editable" : "";
    const attributes = {
      class: this.isMask ? "editable mask" : this.isEditable ? "editable" : undefined,
      role: "grid",
      "aria-label": `${symbol} ${shape}${use}`,
      "aria-readonly": this.isEditable ? false : "true",
      "data-marks": this.shown.marks,
      "data-matrix": this.shown.id,
    };
    const head = create("thead", {}, create("tr", {}, create("td"), ...heads));
    return create("table", attributes, head, create("tbody", {}, ...body), ...foot);
  }

  /** @param {number} row @param {number} column */
  cell(row, column) {
    const cell = create("td", { tabindex: row + column === 0 ? 0 : -1 });
    positions.set(cell, { table: this, row, column });
    return cell;
  }

  /** Return where a shown cell is in the stored matrix. @param {number} row @param {number} column @returns {CellAddress} */
  address(row, column) {
    const { id, transposed, columns } = this.shown;
    const shifted = column + (columns?.[0] ?? 0);
    return transposed ? { id, row: shifted, column: row } : { id, row, column: shifted };
  }

  /** Return the cell that shows a number of the stored matrix. @param {number} row @param {number} column */
  cellAt(row, column) {
    const { transposed, columns } = this.shown;
    return transposed ? this.cells[column]?.[row] : this.cells[row]?.[column - (columns?.[0] ?? 0)];
  }

  /** Show the numbers of a calculation of the same shape, and mark those that changed. @param {Calculation} calculation */
  update(calculation) {
    const [before, hidden] = [this.values, this.hidden];
    const view = this.view(this.matrix(calculation));
    const changed = this.cells.flatMap((cells, row) => cells.filter((_, column) => differ(before[row][column], view.values[row][column])));
    if (changed.length || JSON.stringify(hidden) !== JSON.stringify(view.hidden)) this.fill(calculation);
    else this.describe(calculation);
    markChanged(changed);
  }

  /** @param {Calculation} calculation */
  describe(calculation) {
    this.calculation = calculation;
    const origin = this.originOf(this.matrix(calculation));
    if (this.origin.textContent !== origin) this.origin.textContent = origin;
  }

  /** Show the numbers again after an editor was closed. */
  refill() {
    this.fill(this.calculation);
  }

  /** @param {Calculation} calculation */
  fill(calculation) {
    this.describe(calculation);
    const { values, hidden, texts } = this.view(this.matrix(calculation));
    [this.values, this.hidden] = [values, hidden];
    const largest = Math.max(...values.flat().map((value) => (Number.isFinite(value) ? Math.abs(value) : 0))) || 1;
    this.cells.forEach((cells, row) => {
      cells.forEach((cell, column) => {
        const value = values[row][column];
        const isHidden = Boolean(hidden?.[row][column]);
        const text = isHidden ? MASKED : texts[row][column];
        if (cell.textContent !== text && !cell.firstElementChild) cell.textContent = text; // an open editor stays
        cell.classList.toggle("hidden", isHidden || value === -Infinity);
        const share = isHidden || !Number.isFinite(value) ? 0 : value / largest;
        cell.style.cssText = share === 0 ? "" : `--${share > 0 ? "warm" : "cool"}:${(100 * Math.abs(share)).toFixed(0)}%`;
      });
    });
    if (this.hasSums) this.fillSums();
  }

  fillSums() {
    const sums = this.values.map((row) => Number(row.reduce((left, right) => left + right, 0).toFixed(6)));
    const format = new NumberFormat([sums], this.digits);
    this.values.forEach((row, index) => {
      const { sum, entropy, bar } = this.sums[index];
      sum.textContent = format.signed(sums[index]);
      entropy.textContent = formatNumber(entropyOf(row), this.digits).replace("-", MINUS);
      const scale = Math.max(1, sums[index]);
      const shares = row.map((weight) => create("span", { style: `width:${((100 * weight) / scale).toFixed(2)}%` }));
      bar.replaceChildren(create("div", { class: "shares", "aria-hidden": "true" }, ...shares));
    });
    this.columnSums.forEach((cell, column) => {
      const sum = this.values.reduce((total, row) => total + row[column], 0);
      cell.textContent = new NumberFormat([[Number(sum.toFixed(6))]], this.digits).signed(Number(sum.toFixed(6)));
    });
  }
}

/** Return the entropy of a row in nats, after it is divided by its sum. @param {number[]} row */
function entropyOf(row) {
  const total = row.reduce((left, right) => left + right, 0);
  if (total === 0) return 0;
  return row.reduce((sum, weight) => (weight > 0 ? sum - (weight / total) * Math.log(weight / total) : sum), 0);
}

/** Return the cells next to a row of weights: sum, entropy and shares. */
const statisticCells = () => ({
  sum: create("td", { class: "sum" }),
  entropy: create("td", { class: "statistic entropy" }),
  bar: create("td", { class: "statistic share" }),
});

/** @param {string} name @param {"row" | "col"} scope */
function header(name, scope) {
  const text = visibleToken(name);
  return create("th", { scope, title: text }, create("bdi", {}, text));
}

/** @type {WeakMap<Element, number>} */
const changes = new WeakMap(); // how often a cell was marked

/** @param {HTMLElement[]} cells */
function markChanged(cells) {
  for (const cell of cells) {
    cell.classList.add("changed");
    changes.set(cell, (changes.get(cell) ?? 0) + 1);
  }
  const counts = cells.map((cell) => changes.get(cell));
  setTimeout(() => cells.forEach((cell, index) => changes.get(cell) === counts[index] && cell.classList.remove("changed")), CHANGED_MS);
}
