// Wheel and touch over the heatmap. The page scrolls unless the user asks to zoom: with Ctrl or ⌘, after a click, or with two fingers.

import { element } from "clearhead/dom.js";
import { clamp } from "clearhead/format.js";
import { dataAt, figures } from "clearhead/heatmap.js";
import { on, stackShown, state } from "clearhead/state.js";

const HINT_TIME = 1500; // milliseconds
const MIN_CELLS = 4; // smallest side of a window

let isArmed = false; // the plain wheel zooms
/** @type {ReturnType<typeof setTimeout> | undefined} */
let hiding;

function showHint() {
  const isMac = navigator.platform.startsWith("Mac");
  element("wheel-hint").textContent = `${isMac ? "⌘" : "Ctrl"} + scroll zooms, or click first`;
  element("wheel-hint").classList.add("shown");
  clearTimeout(hiding);
  hiding = setTimeout(hideHint, HINT_TIME);
}

const hideHint = () => element("wheel-hint").classList.remove("shown");

/** Let Bokeh see a wheel event only if it is meant to zoom. @param {WheelEvent} event */
function wheeled(event) {
  if (isArmed || event.ctrlKey || event.metaKey) return hideHint();
  event.stopPropagation();
  showHint();
}

// -- two fingers ---------------------------------------------------------------------------------------------------------------

/** The ranges and fingers at the start of a pinch. @type {{ spread: number, x: number, y: number, size: [number, number] } | undefined} */
let pinch;

/** @param {TouchList} touches */
function measure([one, other]) {
  const point = { clientX: (one.clientX + other.clientX) / 2, clientY: (one.clientY + other.clientY) / 2 };
  return { point, spread: Math.max(1, Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY)) };
}

/** @param {TouchEvent} event */
function touchStarted(event) {
  if (event.touches.length !== 2 || !state.head) return;
  if (event.cancelable) event.preventDefault(); // otherwise two fingers scroll the page
  const { point, spread } = measure(event.touches);
  const { x_range: across, y_range: down } = figures.map;
  const { x, y } = dataAt(figures.map, point);
  pinch = { spread, x, y, size: [down.start - down.end, across.end - across.start] };
}

/** Keep the cell between the fingers between them. @param {TouchEvent} event */
function touchMoved(event) {
  if (event.touches.length !== 2 || !pinch) return;
  if (event.cancelable) event.preventDefault();
  const { point, spread } = measure(event.touches);
  const { queries, keys } = stackShown();
  const { x_range: across, y_range: down } = figures.map;
  const { x, y } = dataAt(figures.map, point);
  const fitted = (/** @type {number} */ size, /** @type {number} */ length, /** @type {number} */ cell, /** @type {number} */ share) => {
    const wanted = clamp(size, Math.min(MIN_CELLS, length), length);
    const start = clamp(cell - share * wanted, 0, length - wanted);
    return [start, start + wanted];
  };
  const scale = pinch.spread / spread;
  const [row, rowEnd] = fitted(pinch.size[0] * scale, queries, pinch.y, (y - down.end) / (down.start - down.end));
  const [key, keyEnd] = fitted(pinch.size[1] * scale, keys, pinch.x, (x - across.start) / (across.end - across.start));
  down.setv({ start: rowEnd, end: row });
  across.setv({ start: key, end: keyEnd });
}

function touchEnded() {
  if (!pinch) return;
  pinch = undefined;
  Bokeh.index.find_one(figures.map).trigger_ranges_update_event();
}

// ------------------------------------------------------------------------------------------------------------------------------

on("ready", () => {
  const map = element("map");
  map.addEventListener("wheel", wheeled, { capture: true });
  map.addEventListener("click", () => (isArmed = true));
  map.addEventListener("pointerleave", () => (isArmed = false));
  element("chart").addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => event.key === "Escape" && (isArmed = false));
  map.addEventListener("touchstart", touchStarted, { passive: false });
  map.addEventListener("touchmove", touchMoved, { passive: false });
  for (const event of ["touchend", "touchcancel"]) map.addEventListener(event, touchEnded);
  for (const name of ["map", "entropy", "received"]) {
    const { events_el: events } = Bokeh.index.find_one(figures[name]).canvas_view;
    events.style.touchAction = "pan-x pan-y"; // Bokeh's "none" would stop the page from scrolling
    const stop = (/** @type {PointerEvent} */ event) => event.pointerType === "touch" && event.stopImmediatePropagation();
    for (const event of ["pointerdown", "pointermove", "pointerup", "pointercancel"]) {
      element(name).addEventListener(event, stop, { capture: true });
    }
  }
});
