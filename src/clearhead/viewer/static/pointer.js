// The pointer over the figures: a tooltip and a crosshair, and clicks on cells, axis labels and bars.

import { pointAt } from "clearhead/cursor.js";
import { element, make } from "clearhead/dom.js";
import { clamp, significant } from "clearhead/format.js";
import { binAt, dataAt, figures } from "clearhead/heatmap.js";
import { readOut, readOutCell, sideText, valueText } from "clearhead/readout.js";
import { on, settings, stackShown, state } from "clearhead/state.js";

/** @typedef {"query" | "key"} Side */
/** @typedef {(Node | string | undefined)[]} Line */

const GAP = 14; // pixels between the pointer and the tooltip
const MAX_CLICK_MOVE = 5; // pixels; a longer move is a drag
const UNITS = { entropy: " nats", received: "" };

// -- the tooltip and the crosshair ---------------------------------------------------------------------------------------------

/** Show lines of text near a point, inside the viewport. @param {{ clientX: number, clientY: number }} point @param {Line[]} lines */
function showTip({ clientX, clientY }, lines) {
  const tip = element("tip");
  tip.replaceChildren(...lines.map((line) => make("p", {}, ...line)));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const near = (/** @type {number} */ at, /** @type {number} */ size, /** @type {number} */ length) =>
    clamp(at + GAP + size > length ? at - GAP - size : at + GAP, 0, Math.max(0, length - size));
  tip.style.left = `${near(clientX, width, document.documentElement.clientWidth)}px`;
  tip.style.top = `${near(clientY, height, window.innerHeight)}px`;
}

function hideTip() {
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
function selectToken(side, position) {
  const { queries, keys } = stackShown();
  const { query, key } = state.cell ?? { query: 0, key: 0 };
  if (side === "query") pointAt(indexAt(position, queries), key);
  else pointAt(query, indexAt(position, keys));
}

// -- the bars ------------------------------------------------------------------------------------------------------------------

/** @param {"entropy" | "received"} name @param {number} position */
function barAt(name, position) {
  const { start, end, value } = figures[name].renderers[0].data_source.data;
  const index = Array.from(/** @type {ArrayLike<number>} */ (end)).findIndex((edge) => position < edge);
  return index < 0 ? undefined : { start: start[index], end: end[index], value: value[index] };
}

/** Name how the bars that cover several tokens were reduced. @param {"entropy" | "received"} name */
const reductionOf = (name) => ((figures[name].tags[0] ?? settings.reduce) === "max" ? "largest" : "mean");

/** @param {"entropy" | "received"} name @param {MouseEvent} event */
function pointedAtBar(name, event) {
  if (!state.head) return;
  const { x, y } = dataAt(figures[name], event);
  const side = name === "entropy" ? "query" : "key";
  const bar = barAt(name, name === "entropy" ? y : x);
  if (!bar) return hideTip();
  const [start, end] = [Math.floor(bar.start), Math.max(Math.floor(bar.start) + 1, Math.ceil(bar.end))];
  const reduced = bar.end - bar.start > 1 ? `${reductionOf(name)} ` : "";
  setCursor(figures[name], "pointer");
  showTip(event, [sideText(side, start, end), [`${reduced}${name} ${significant(bar.value)}${UNITS[name]}`]]);
}

/** Title the bars, with the number of tokens that one bar covers. */
function titleBars() {
  for (const name of /** @type {const} */ (["entropy", "received"])) {
    const { start, end } = figures[name].renderers[0].data_source.data;
    const covered = start.length ? Math.round(end[0] - start[0]) : 1;
    const unit = name === "entropy" ? "entropy, nats" : "received";
    const isPooled = covered > 1 && !(name === "entropy" && stackShown()?.places); // a stored query is not an average
    /** @type {any} */ (document.querySelector(`#${name} .side`)).textContent = isPooled ? `${unit}; ${reductionOf(name)} of ${covered}` : unit;
  }
}

// ------------------------------------------------------------------------------------------------------------------------------

/** @param {any} figure @param {string} cursor */
const setCursor = (figure, cursor) => (Bokeh.index.find_one(figure).canvas_view.events_el.style.cursor = cursor);

/** Follow the pointer over an element. @param {string} id @param {(event: MouseEvent) => void} pointed @param {(event: MouseEvent) => void} clicked */
function follow(id, pointed, clicked) {
  const area = element(id);
  /** @type {MouseEvent | undefined} */
  let pressed;
  area.addEventListener("pointerdown", (/** @type {MouseEvent} */ event) => (pressed = event));
  area.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => event.pointerType !== "touch" && pointed(event));
  area.addEventListener("pointerleave", (/** @type {PointerEvent} */ event) => {
    if (event.pointerType === "touch") return; // a finger leaves at the end of its tap
    hideTip();
    readOutCell();
  });
  area.addEventListener("click", (/** @type {PointerEvent} */ event) => {
    if (pressed && Math.hypot(event.clientX - pressed.clientX, event.clientY - pressed.clientY) > MAX_CLICK_MOVE) return;
    clicked(event);
    if (event.pointerType === "touch") pointed(event);
  });
}

on("ready", () => {
  follow("map", pointedAtMap, clickedMap);
  follow("entropy", (event) => pointedAtBar("entropy", event), (event) => state.head && selectToken("query", dataAt(figures.entropy, event).y));
  follow("received", (event) => pointedAtBar("received", event), (event) => state.head && selectToken("key", dataAt(figures.received, event).x));
  for (const name of ["entropy", "received"]) figures[name].renderers[0].data_source.properties.data.change.connect(titleBars);
  titleBars();
});
window.addEventListener("scroll", hideTip, { passive: true });
document.addEventListener("keydown", hideTip);
