// The pointer over the heatmap: a tooltip and a crosshair, and clicks on cells and axis labels.

import { pointAt } from "clearhead/cursor.js";
import { element, make } from "clearhead/dom.js";
import { clamp } from "clearhead/format.js";
import { binAt, dataAt, figures } from "clearhead/heatmap.js";
import { readOut, readOutCell, sideText, valueText } from "clearhead/readout.js";
import { announce, on, stackShown, state } from "clearhead/state.js";

/** @typedef {"query" | "key"} Side */
/** @typedef {(Node | string | undefined)[]} Line */

const GAP = 14; // pixels between the pointer and the tooltip
const MAX_CLICK_MOVE = 5; // pixels; a longer move is a drag

// -- the tooltip and the crosshair ---------------------------------------------------------------------------------------------

/** Show lines of text near a point, inside the viewport. @param {{ clientX: number, clientY: number }} point @param {Line[]} lines */
export function showTip({ clientX, clientY }, lines) {
  const tip = element("tip");
  tip.replaceChildren(...lines.map((line) => make("p", {}, ...line)));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const near = (/** @type {number} */ at, /** @type {number} */ size, /** @type {number} */ length) =>
    clamp(at + GAP + size > length ? at - GAP - size : at + GAP, 0, Math.max(0, length - size));
  tip.style.left = `${near(clientX, width, document.documentElement.clientWidth)}px`;
  tip.style.top = `${near(clientY, height, window.innerHeight)}px`;
}

export function hideTip() {
  element("tip").hidden = true;
  showCrosshair(undefined);
}

/** Mark the row and the column of a bin. @param {Bin | undefined} bin */
function showCrosshair(bin) {
  const crosshair = /** @type {HTMLElement} */ (document.querySelector(".crosshair"));
  crosshair.hidden = !bin;
  if (!bin) return;
  const { frame } = Bokeh.index.find_one(figures.map);
  const { left, top, width, height } = frame.bbox;
  Object.assign(crosshair.style, { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
  const [row, column] = /** @type {HTMLElement[]} */ ([...crosshair.children]);
  const size = (/** @type {number} */ start, /** @type {number} */ end) => `${Math.max(1, end - start)}px`;
  const [y, yEnd] = [bin.query, bin.queryEnd].map((edge) => frame.y_scale.compute(edge) - top);
  const [x, xEnd] = [bin.key, bin.keyEnd].map((edge) => frame.x_scale.compute(edge) - left);
  Object.assign(row.style, { top: `${y}px`, height: size(y, yEnd) });
  Object.assign(column.style, { left: `${x}px`, width: size(x, xEnd) });
}

// -- the map -------------------------------------------------------------------------------------------------------------------

/** @param {number} value @param {number} length */
const indexAt = (value, length) => clamp(Math.floor(value), 0, length - 1);

/** @param {MouseEvent} event */
function pointedAtMap(event) {
  if (!state.head) return;
  const { x, y, part } = dataAt(figures.map, event);
  const bin = part === "frame" ? binAt(x, y) : undefined;
  readOut(bin);
  announce("pointed", bin);
  showCrosshair(bin);
  if (bin) return showTip(event, [sideText("query", bin.query, bin.queryEnd, bin), sideText("key", bin.key, bin.keyEnd, bin), [valueText(bin)]]);
  if (part !== "query" && part !== "key") return hideTip();
  const { queries, keys } = stackShown();
  const index = part === "query" ? indexAt(y, queries) : indexAt(x, keys);
  setCursor(figures.map, "pointer");
  showTip(event, [sideText(part, index, index + 1), [`Click to select this ${part}.`]]);
}

/** @param {MouseEvent} event */
function clickedMap(event) {
  if (!state.head) return;
  const { x, y, part } = dataAt(figures.map, event);
  if (part === "frame" && binAt(x, y)) pointAt(Math.floor(y), Math.floor(x));
  if (part === "query") selectToken("query", y);
  if (part === "key") selectToken("key", x);
}

/** Select the row of a query or the column of a key. @param {Side} side @param {number} position */
export function selectToken(side, position) {
  const { queries, keys } = stackShown();
  const { query, key } = state.cell ?? { query: 0, key: 0 };
  if (side === "query") pointAt(indexAt(position, queries), key);
  else pointAt(query, indexAt(position, keys));
}

// ------------------------------------------------------------------------------------------------------------------------------

/** @param {any} figure @param {string} cursor */
export const setCursor = (figure, cursor) => (Bokeh.index.find_one(figure).canvas_view.events_el.style.cursor = cursor);

/** Follow the pointer over an element. @param {string} id @param {(event: MouseEvent) => void} pointed @param {(event: MouseEvent) => void} clicked */
export function follow(id, pointed, clicked) {
  const area = element(id);
  /** @type {MouseEvent | undefined} */
  let pressed;
  area.addEventListener("pointerdown", (/** @type {MouseEvent} */ event) => (pressed = event));
  area.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => event.pointerType !== "touch" && pointed(event));
  area.addEventListener("pointerleave", (/** @type {PointerEvent} */ event) => {
    if (event.pointerType === "touch") return; // a finger leaves at the end of its tap
    hideTip();
    readOutCell();
    announce("pointed");
  });
  area.addEventListener("click", (/** @type {PointerEvent} */ event) => {
    if (pressed && Math.hypot(event.clientX - pressed.clientX, event.clientY - pressed.clientY) > MAX_CLICK_MOVE) return;
    clicked(event);
    if (event.pointerType === "touch") pointed(event);
  });
}

on("ready", () => follow("map", pointedAtMap, clickedMap));
window.addEventListener("scroll", hideTip, { passive: true });
document.addEventListener("keydown", hideTip);
