// Editing of numbers in place: by typing, by the wheel, by dragging sideways, and by keys.

import { dragCells, stepped, valueAt } from "clearhead/cell_drag.js";
import { create } from "clearhead/elements.js";
import { cellPosition } from "clearhead/matrix_table.js";
import { parseNumber } from "clearhead/number_format.js";

/** @typedef {import("clearhead/cell_drag.js").Position} Position */
/**
 * @typedef {{
 *   change: (position: Position, value: number, session: number) => boolean,
 *   toggle: (position: Position) => void, say: (text: string) => void
 * }} Editing `change` returns whether the value was accepted; changes of one session are one step of the history
 */

const ARROWS = /** @type {Record<string, [number, number]>} */ ({ ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] });

let sessions = 0;

/** @param {Position} position */
const cellOf = ({ table, row, column }) => table.cells[row][column];
/** @param {Position} position */
const isNumber = ({ table }) => table.isEditable && !table.isMask;
/** @param {number} value */
const asText = (value) => String(value).replace("-", "−");

/** Move the focus, and the matrix's tab stop with it. @param {Position} position @param {number} rows @param {number} columns @returns {boolean} */
function moveFocus({ table, row, column }, rows, columns) {
  const cell = table.cells[row + rows]?.[column + columns];
  if (!cell) return false;
  table.cells[row][column].tabIndex = -1;
  cell.tabIndex = 0;
  cell.focus();
  return true;
}

/** Make the numbers of editable matrices editable. @param {HTMLElement} root @param {Editing} editing */
export function editCells(root, editing) {
  /** @type {{ position: Position, input: HTMLInputElement, before: number, session: number } | null} */
  let open = null;
  /** Session of changes by wheel or keys, which end when the focus leaves the cell. */
  let session = 0;

  /** @param {Position} position */
  const isOpen = (position) => open !== null && cellOf(open.position) === cellOf(position);

  /** @param {Position} position @param {string} [typed] first letter, which replaces the number */
  function start(position, typed) {
    finish();
    const label = `${position.table.symbol}, row ${position.row + 1}, column ${position.column + 1}`;
    const input = create("input", { class: "cell-input", type: "text", autocomplete: "off", spellcheck: "false", "aria-label": label });
    const before = valueAt(position);
    open = { position, input, before, session: ++sessions };
    input.value = typed ?? asText(before);
    cellOf(position).replaceChildren(input);
    input.focus();
    if (typed === undefined) input.select();
    else takeOver();
  }

  /** Recompute while the reader types. */
  function takeOver() {
    if (!open) return;
    const value = parseNumber(open.input.value);
    const isAccepted = !Number.isNaN(value) && editing.change(open.position, value, open.session);
    open.input.setAttribute("aria-invalid", String(!isAccepted));
    if (Number.isNaN(value)) editing.say(`“${open.input.value}” is not a number yet; the last number stays.`);
  }

  /** Close the editor. @param {boolean} [isKept] false: restore the number from before */
  function finish(isKept = true) {
    if (!open) return;
    const { position, before, session: opened } = open;
    open = null;
    const cell = cellOf(position);
    cell.replaceChildren();
    if (!isKept && valueAt(position) !== before) editing.change(position, before, opened);
    position.table.refill();
  }

  /** @param {Position} position @param {number} steps @param {boolean} isFine */
  function step(position, steps, isFine) {
    const value = stepped(valueAt(position), steps, isFine);
    if (open) open.input.value = asText(value);
    editing.change(position, value, open?.session ?? session);
  }

  root.addEventListener("keydown", (event) => {
    const position = cellPosition(event.target);
    if (!position || event.ctrlKey || event.metaKey) return;
    if (open ? editorKey(event, position) : cellKey(event, position)) event.preventDefault();
  });

  /** @param {KeyboardEvent} event @param {Position} position @returns {boolean} handled */
  function editorKey(event, position) {
    const { key, shiftKey } = event;
    if (event.altKey && (key === "ArrowUp" || key === "ArrowDown")) step(position, key === "ArrowUp" ? 1 : -1, shiftKey);
    else if (key === "Escape") {
      finish(false);
      cellOf(position).focus();
    } else if (key === "Enter" || key === "ArrowUp" || key === "ArrowDown") leave(position, (key === "Enter" ? shiftKey : key === "ArrowUp") ? -1 : 1, 0);
    else if (key === "Tab") return leaveByTab(position, shiftKey ? -1 : 1);
    else return false;
    return true;
  }

  /** @param {Position} position @param {number} rows @param {number} columns */
  function leave(position, rows, columns) {
    finish();
    if (!moveFocus(position, rows, columns)) cellOf(position).focus();
  }

  /** Go to the next number, or leave the matrix at its end. @param {Position} position @param {number} direction */
  function leaveByTab(position, direction) {
    const { table, row, column } = position;
    const width = table.cells[0].length;
    const next = row * width + column + direction;
    finish();
    if (next < 0 || next >= width * table.cells.length) {
      cellOf(position).focus(); // from here, the browser goes on
      return false;
    }
    moveFocus(position, Math.floor(next / width) - row, (next % width) - column);
    return true;
  }

  /** @param {KeyboardEvent} event @param {Position} position @returns {boolean} handled */
  function cellKey({ key, altKey, shiftKey }, position) {
    const { table, row, column } = position;
    if (altKey) {
      if (!isNumber(position) || (key !== "ArrowUp" && key !== "ArrowDown")) return false;
      step(position, key === "ArrowUp" ? 1 : -1, shiftKey);
    } else if (key in ARROWS) moveFocus(position, ...ARROWS[key]);
    else if (key === "Home") moveFocus(position, 0, -column);
    else if (key === "End") moveFocus(position, 0, table.cells[row].length - 1 - column);
    else if (table.isMask && (key === " " || key === "Enter")) editing.toggle(position);
    else if (!isNumber(position)) return false;
    else if (key === "Enter" || key === "F2") start(position);
    else if (key === "Delete" || key === "Backspace") editing.change(position, 0, ++sessions);
    else if (/^[-−+.,\d]$/.test(key)) start(position, key);
    else return false;
    return true;
  }

  root.addEventListener("input", ({ target }) => {
    if (open && target === open.input) takeOver();
  });
  root.addEventListener("focusin", ({ target }) => {
    const position = cellPosition(target);
    if (!position || (open && target === open.input)) return;
    session = ++sessions;
    for (const cell of position.table.cells.flat()) cell.tabIndex = -1;
    cellOf(position).tabIndex = 0;
  });
  root.addEventListener("focusout", ({ target }) => {
    if (open && target === open.input) finish();
  });
  root.addEventListener(
    "wheel",
    (event) => {
      const position = cellPosition(event.target);
      const amount = event.deltaY || event.deltaX; // Shift turns the wheel sideways
      if (!position || !amount || event.ctrlKey || !isNumber(position) || !cellOf(position).contains(document.activeElement)) return;
      event.preventDefault();
      step(position, amount < 0 ? 1 : -1, event.shiftKey);
    },
    { passive: false },
  );

  dragCells(root, {
    isDragged: (position, event) => isNumber(position) && !(open && event.pointerType === "mouse" && event.target === open.input),
    drag(position, value) {
      if (open && isOpen(position)) open.input.value = asText(value);
      editing.change(position, value, session);
    },
    begin: () => void (session = ++sessions),
    click(position) {
      if (position.table.isMask) editing.toggle(position);
      else if (isNumber(position) && !isOpen(position)) start(position);
    },
  });
}
