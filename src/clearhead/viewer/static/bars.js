// The bars along the sides of the heatmap: entropy of each query, attention that each key receives. Each chart is a slider:
// the pointer or the arrow keys select a query or a key, and its value is read out.

import { moveCursor, showCell } from "clearhead/cursor.js";
import { element } from "clearhead/dom.js";
import { significant } from "clearhead/format.js";
import { dataAt, figures } from "clearhead/heatmap.js";
import { follow, hideTip, selectToken, setCursor, showTip } from "clearhead/pointer.js";
import { sideText } from "clearhead/readout.js";
import { on, settings, stackShown, state } from "clearhead/state.js";

/** @typedef {"entropy" | "received"} Chart */
/** @typedef {{ start: number, end: number, value: number }} Bar */

const CHARTS = /** @type {const} */ (["entropy", "received"]);
const SIDES = /** @type {const} */ ({ entropy: "query", received: "key" });
const UNITS = { entropy: " nats", received: "" };
const FAR = 10; // tokens of a step with Shift or Page Up and Page Down

/** @param {Chart} name */
const barsOf = (name) => figures[name].renderers[0].data_source;

/** @param {Chart} name @param {number} position @returns {Bar | undefined} */
function barAt(name, position) {
  const { start, end, value } = barsOf(name).data;
  const index = Array.from(/** @type {ArrayLike<number>} */ (end)).findIndex((edge) => position < edge);
  return index < 0 || position < start[0] ? undefined : { start: start[index], end: end[index], value: value[index] };
}

/** Name how the bars that cover several tokens were reduced. @param {Chart} name */
const reductionOf = (name) => ((figures[name].tags[0] ?? settings.reduce) === "max" ? "largest" : "mean");

/** Return the token or the tokens of a bar, and its value. @param {Chart} name @param {Bar} bar */
function barLines(name, { start, end, value }) {
  const first = Math.floor(start);
  const reduced = end - start > 1 ? `${reductionOf(name)} ` : "";
  return [sideText(SIDES[name], first, Math.max(first + 1, Math.ceil(end))), [`${reduced}${name} ${significant(value)}${UNITS[name]}`]];
}

/** @param {Chart} name @param {MouseEvent} event */
function pointedAt(name, event) {
  if (!state.head) return;
  const { x, y } = dataAt(figures[name], event);
  const bar = barAt(name, name === "entropy" ? y : x);
  if (!bar) return hideTip();
  setCursor(figures[name], "pointer");
  showTip(event, barLines(name, bar));
}

/** Title the bars, with the number of tokens that one bar covers. @param {Chart} name */
function titleBars(name) {
  const { start, end } = barsOf(name).data;
  const covered = start.length ? Math.round(end[0] - start[0]) : 1;
  const unit = name === "entropy" ? "entropy, nats" : "received";
  const isPooled = covered > 1 && !(name === "entropy" && stackShown()?.places); // a stored query is not an average
  /** @type {any} */ (document.querySelector(`#${name} .side`)).textContent = isPooled ? `${unit}; ${reductionOf(name)} of ${covered}` : unit;
}

// -- the keyboard --------------------------------------------------------------------------------------------------------------

/** Return the bar of the selected query or key. @param {Chart} name */
const selectedBar = (name) => (state.cell && stackShown() ? barAt(name, state.cell[SIDES[name]]) : undefined);

/** Tell screen readers the selected bar; with the focus, also show it. @param {Chart} name */
function describe(name) {
  const area = element(name);
  const bar = selectedBar(name);
  const { queries, keys } = stackShown() ?? { queries: 1, keys: 1 };
  area.setAttribute("aria-valuemax", String((name === "entropy" ? queries : keys) - 1));
  area.setAttribute("aria-valuenow", String(state.cell?.[SIDES[name]] ?? 0));
  const text = bar ? barLines(name, bar).map((line) => line.map((part) => (part instanceof Node ? part.textContent : part)).join("")).join(": ") : "";
  area.setAttribute("aria-valuetext", text);
  if (bar && area.matches(":focus-visible")) showTip(middleOf(name, bar), barLines(name, bar));
}

/** Return the middle of a bar in the viewport. @param {Chart} name @param {Bar} bar */
function middleOf(name, { start, end }) {
  const { canvas_view, frame } = Bokeh.index.find_one(figures[name]);
  const { left, top } = canvas_view.el.getBoundingClientRect();
  const { x_center, y_center } = frame.bbox;
  const middle = (start + end) / 2;
  const [x, y] = name === "entropy" ? [x_center, frame.y_scale.compute(middle)] : [frame.x_scale.compute(middle), y_center];
  return { clientX: left + x, clientY: top + y };
}

/** @param {Chart} name @param {KeyboardEvent} event */
function pressed(name, event) {
  const { cell } = state;
  if (!cell || event.ctrlKey || event.metaKey || event.altKey) return;
  const { queries, keys } = stackShown();
  const move = (/** @type {number} */ step) => (name === "entropy" ? moveCursor(step, 0) : moveCursor(0, step));
  const goTo = (/** @type {number} */ index) => (name === "entropy" ? showCell(index, cell.key) : showCell(cell.query, index));
  const step = event.shiftKey ? FAR : 1;
  /** @type {Record<string, () => void>} */
  const actions = {
    ArrowUp: () => move(-step), ArrowLeft: () => move(-step), ArrowDown: () => move(step), ArrowRight: () => move(step),
    PageUp: () => move(-FAR), PageDown: () => move(FAR), Home: () => goTo(0), End: () => goTo((name === "entropy" ? queries : keys) - 1),
  };
  if (!actions[event.key]) return; // other keys are those of the heatmap
  actions[event.key]();
  event.preventDefault();
  event.stopPropagation();
}

on("ready", () => {
  for (const name of CHARTS) {
    follow(name, (event) => pointedAt(name, event), (event) => {
      const { x, y } = dataAt(figures[name], event);
      if (state.head) selectToken(SIDES[name], name === "entropy" ? y : x);
    });
    const changed = () => {
      titleBars(name);
      describe(name);
    };
    barsOf(name).properties.data.change.connect(changed);
    on("cell", () => describe(name));
    element(name).addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => pressed(name, event));
    element(name).addEventListener("focus", () => describe(name));
    element(name).addEventListener("blur", hideTip);
    changed();
  }
});
