// Marks of the cells that a number is computed from: its operands in the step, and its whole ancestry in all matrices.

import { ancestry, sourceCells } from "clearhead/ancestry.js";
import { arithmeticLines } from "clearhead/arithmetic.js";
import { cellPosition } from "clearhead/matrix_table.js";

/** @typedef {import("clearhead/step_section.js").StepSection} StepSection */

/**
 * Show the arithmetic and the ancestry of the number that is pointed at or focused.
 * @param {HTMLElement} root
 * @param {{ sections: () => StepSection[], calculation: () => Calculation, digits: number }} page
 * @returns {{ refresh: () => void }} `refresh` follows a change of the calculation
 */
export function markAncestry(root, { sections, calculation, digits }) {
  /** @type {HTMLElement[]} */
  let marked = [];
  /** @type {HTMLElement | null} */
  let chosen = null;

  function clear() {
    for (const cell of marked) cell.classList.remove("marked", "ancestor");
    marked = [];
    chosen = null;
    for (const section of sections()) section.sayArithmetic("");
  }

  /** @param {HTMLElement | undefined} cell @param {string} kind */
  function mark(cell, kind) {
    if (!cell) return;
    cell.classList.add(kind);
    marked.push(cell);
  }

  /** @param {HTMLTableCellElement | undefined} cell */
  function markDirect(cell) {
    if (!cell) return;
    mark(cell, "marked");
    const row = /** @type {HTMLTableRowElement} */ (cell.parentElement);
    mark(row.cells[0], "marked");
    mark(cell.closest("table")?.tHead?.rows[0].cells[cell.cellIndex], "marked");
  }

  /** @param {HTMLTableCellElement} cell */
  function explain(cell) {
    const position = cellPosition(cell);
    const section = sections().find(({ element }) => element.contains(cell));
    if (!position || !section) return;
    clear();
    chosen = cell;
    const { id, row, column } = position.table.address(position.row, position.column);
    const current = calculation();
    for (const [matrix, cells] of ancestry(current, id, row, column)) {
      for (const table of sections().flatMap(({ tables }) => tables).filter(({ shown }) => shown.id === matrix)) {
        for (const text of cells) mark(table.cellAt(...pair(text)), "ancestor");
      }
    }
    markDirect(cell);
    for (const source of position.table.shown.marks === "result" ? sourceCells(current, id, row, column) : []) {
      const operands = section.tables.filter(({ shown }) => shown.id === source.id && shown.marks !== "result");
      for (const table of operands) for (const cell of source.cells) markDirect(table.cellAt(...cell));
    }
    section.sayArithmetic(arithmeticLines(current, id, row, column, digits).join(" "));
  }

  for (const kind of ["pointerover", "click", "focusin"]) {
    root.addEventListener(kind, ({ target }) => {
      const cell = target instanceof Element ? target.closest("td") : null;
      if (cell && cellPosition(cell) && (cell !== chosen || kind === "click")) explain(cell);
    });
  }
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !event.defaultPrevented) clear();
  });

  return {
    refresh() {
      const cell = /** @type {HTMLTableCellElement | null} */ (chosen);
      if (cell?.isConnected) explain(cell);
      else clear();
    },
  };
}

/** @param {string} text "row,column" @returns {[number, number]} */
function pair(text) {
  const [row, column] = text.split(",").map(Number);
  return [row, column];
}
