// Dragging a number sideways, which changes it in steps.

import { cellPosition } from "clearhead/matrix_table.js";

/** @typedef {{ table: import("clearhead/matrix_table.js").MatrixTable, row: number, column: number }} Position */

const STEP = 0.1;
const FINE_STEP = 0.01; // with Shift
const DRAG_PIXELS = 8; // for one step

/** Return a number after some steps, without the rounding errors of repeated sums. @param {number} value @param {number} steps @param {boolean} isFine */
export const stepped = (value, steps, isFine) => Number((value + steps * (isFine ? FINE_STEP : STEP)).toFixed(10));

/** @param {Position} position */
export const valueAt = ({ table, row, column }) => table.values[row][column];

/**
 * Turn a sideways drag into steps, and a press without movement into a click.
 * @param {HTMLElement} root
 * @param {{ isDragged: (position: Position, event: PointerEvent) => boolean, drag: (position: Position, value: number) => void, begin: () => void, click: (position: Position) => void }} actions
 */
export function dragCells(root, { isDragged, drag, begin, click }) {
  /** @type {{ position: Position, x: number, value: number, isMoved: boolean } | null} */
  let pressed = null;
  root.addEventListener("pointerdown", (event) => {
    const position = cellPosition(event.target);
    if (!position || event.button !== 0) return;
    pressed = isDragged(position, event) ? { position, x: event.clientX, value: valueAt(position), isMoved: false } : null;
  });
  root.addEventListener("pointermove", (event) => {
    if (!pressed || !(event.buttons & 1)) return;
    const steps = Math.trunc((event.clientX - pressed.x) / DRAG_PIXELS);
    if (!steps && !pressed.isMoved) return;
    if (!pressed.isMoved) {
      pressed.isMoved = true;
      begin();
      root.setPointerCapture(event.pointerId);
      root.classList.add("dragging");
    }
    drag(pressed.position, stepped(pressed.value, steps, event.shiftKey));
  });
  const end = () => {
    root.classList.remove("dragging");
    // the click that follows a drag is not a click on the cell
    setTimeout(() => (pressed = null));
  };
  root.addEventListener("pointerup", end);
  root.addEventListener("pointercancel", end);
  root.addEventListener("click", (event) => {
    const position = cellPosition(event.target);
    if (position && !pressed?.isMoved && !(event.target instanceof HTMLInputElement)) click(position);
  });
}
