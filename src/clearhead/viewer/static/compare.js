// The pinned head next to the shown one: its map in the same window, and the difference of both.

import { keepInAddress, writeAddress } from "clearhead/address.js";
import { cellAt, drawMap, valueAt } from "clearhead/compare_map.js";
import { pointAt } from "clearhead/cursor.js";
import { element, literal, themeColor } from "clearhead/dom.js";
import { clamp, headId, headTitle, significant, stackTitle } from "clearhead/format.js";
import { figures, mapperShown } from "clearhead/heatmap.js";
import { colorOf } from "clearhead/picture.js";
import { ask, on, state, textAsked, tokenAt, writtenAt } from "clearhead/state.js";

// ends of the diverging palette: the pinned head has more, the shown head has more; safe with color blindness
const [PINNED_MORE, SHOWN_MORE] = [{ light: "#2166ac", dark: "#6fb3f2" }, { light: "#b35806", dark: "#ffab5c" }];

/** The pinned head and the parameters of its text. @type {{ head: string, text: Record<string, any> } | undefined} */
let pinned;

// -- the address: "decoder.3.5" in the shown text, "decoder.3.5@2" in a listed text, "decoder.3.5@text:…" in a typed text, and
// "same@recording" for the head of the same name in the recording to compare with

function pinText() {
  if (!pinned) return "";
  const { head, text } = pinned;
  if (!state.model || JSON.stringify(text) === JSON.stringify(textAsked())) return head;
  return `${head}@${text.recording ? "recording" : "text" in text ? `text:${text.text}` : (text.given ?? 0)}`;
}

/** @param {string} value */
function restorePin(value) {
  if (value === pinText()) return;
  const [, head, source] = /** @type {RegExpMatchArray} */ (value.match(/^([^@]*)@?(.*)$/s));
  if (!/^([^@]+\.\d+\.\d+|same)$/.test(head)) return value ? undefined : unpin();
  const parameters = new URLSearchParams(location.hash.slice(1));
  const asShown = Object.fromEntries(["text", "given"].filter((name) => parameters.has(name)).map((name) => [name, parameters.get(name)]));
  if (source && !element("run")) return unpin(); // a report has no other text and no other recording
  if (source === "recording") return pin({ head, text: { recording: true } });
  const text = source.startsWith("text:") ? { text: source.slice(5) } : /^\d+$/.test(source) ? { given: Number(source) } : asShown;
  pin({ head, text });
}

// -- pin and unpin ---------------------------------------------------------------------------------------------------------------

/** @param {{ head: string, text: Record<string, any> }} wanted */
function pin(wanted) {
  pinned = wanted;
  ask("pin", { ...wanted.text, head: wanted.head });
  showButton();
}

function unpin() {
  if (!pinned) return;
  pinned = undefined;
  state.compare = state.compared_cell = null;
  element("compare").hidden = true;
  ask("unpin");
  showButton();
}

/** Return whether the shown head is the pinned one. */
const isPinnedShown = () => Boolean(pinned && state.head && state.model && pinText() === headId(state.head));

function showButton() {
  element("pin").setAttribute("aria-pressed", String(isPinnedShown()));
  element("pin").textContent = isPinnedShown() ? "Unpin" : "Pin";
  element("compare").hidden = !pinned;
  element("to-compare").hidden = !pinned || isPinnedShown();
  element("pin-note").textContent = isPinnedShown() ? "Open another head or text to compare it." : "";
  if (pinned && !state.compare) element("compare-status").textContent = "computing …";
}

// -- what is shown -------------------------------------------------------------------------------------------------------------------

/** Return the text of the pinned head, or the name of its recording; empty if it is of the shown text. */
function sourceName() {
  if (!pinned || !pinText().includes("@")) return "";
  const { text } = pinned;
  if (text.recording) return `recording of ${state.model.compared}`;
  return "text" in text ? String(text.text) : (state.model.given[text.given ?? 0] ?? "");
}

/** Return whether an answer is that of the shown head; after a change of the head, its answer follows. @param {{ shown: string }} answer */
const isOfShown = ({ shown }) => Boolean(state.head && shown === headId(state.head));

function showCompared() {
  const { compare } = state;
  if (!compare || !pinned) return;
  const title = headTitle(compare);
  const source = sourceName();
  element("compare-heading").replaceChildren(`Compared with ${title}`, ...(source ? [" of “", literal(source.slice(0, 80)), "”"] : []));
  element("pinned-caption").textContent = `Pinned: ${title}`;
  element("to-compare").textContent = `compared with ${stackTitle(compare.stack)} ${compare.layer}.${compare.head} ↓`;
  element("compare-note").textContent = isPinnedShown() ? "This head is pinned. Open another head or text to compare it." : compare.reason;
  element("compare-status").textContent = isOfShown(compare) ? "" : "computing …";
  element("difference").hidden = !compare.difference || isPinnedShown() || !isOfShown(compare);
  draw();
  readOut();
}

/** Return the rows of the shown map, if the pinned map is next to it; the rows of both are then in line. */
function rowsBeside() {
  if (getComputedStyle(element("maps")).display !== "grid") return undefined;
  const { frame, canvas_view } = Bokeh.index.find_one(figures.map);
  const { top, height } = frame.bbox;
  return { top, height, bottom: canvas_view.el.clientHeight - top - height };
}

function draw() {
  const { compare } = state;
  if (!compare || element("compare").hidden) return;
  const cell = compare.difference ? state.cell : null;
  const mapper = mapperShown();
  const ends = { low: mapper.low ?? 0, high: mapper.high ?? 1 };
  drawMap(element("pinned-map"), compare, compare.values, (value) => channels(colorOf(value, ends)), cell, rowsBeside());
  if (!compare.difference || element("difference").hidden) return;
  const shown = compare.cellsOf?.(compare.difference) ?? compare.difference; // of the window, if it is short
  const most = Array.from(shown).reduce((best, value) => Math.max(best, Math.abs(value) || 0), 1e-6);
  const scheme = matchMedia("(prefers-color-scheme: dark)").matches && document.documentElement.style.colorScheme !== "light" ? "dark" : "light";
  const [middle, low, high] = [themeColor("panel"), PINNED_MORE[scheme], SHOWN_MORE[scheme]].map(channels);
  const color = (/** @type {number} */ value) => {
    const share = clamp(Math.abs(value) / most, 0, 1);
    return middle.map((channel, index) => Math.round(channel + share * ((value < 0 ? low : high)[index] - channel)));
  };
  drawMap(element("difference-map"), compare, compare.difference, color, cell);
  element("difference-ramp").style.background = `linear-gradient(to right, ${PINNED_MORE[scheme]}, ${themeColor("panel")}, ${SHOWN_MORE[scheme]})`;
  element("difference-low").textContent = `${significant(-most, 2)}, pinned more`;
  element("difference-high").textContent = `${significant(most, 2)}, shown more`;
}

/** Return red, green and blue of a color such as "#2166ac" or "rgb(33, 102, 172)". @param {string} color */
function channels(color) {
  if (color.startsWith("#")) return [1, 3, 5].map((start) => parseInt(color.slice(start, start + 2), 16));
  return (color.match(/[\d.]+/g) ?? []).slice(0, 3).map(Number);
}

/** Read out the weights of a cell in both heads: at the pointer, or the selected one. @param {{ query: number, key: number }} [at] */
function readOut(at) {
  const { compare, compared_cell: selected } = state;
  const box = element("compare-readout");
  if (!compare?.difference || isPinnedShown() || !isOfShown(compare)) return box.replaceChildren();
  const cell = at ?? selected;
  if (!cell) return box.replaceChildren();
  const isExact = selected && isOfShown(selected) && cell.query === selected.query && cell.key === selected.key && selected.weights.length === 2;
  const difference = valueAt(compare, compare.difference, cell);
  const other = valueAt(compare, compare.values, cell);
  const [one, two] = isExact ? selected.weights : [other + difference, other];
  if (one === undefined || Number.isNaN(one)) return box.replaceChildren();
  const token = (/** @type {"query" | "key"} */ side) => literal(tokenAt(side, cell[side]) ?? String(cell[side]));
  const written = writtenAt(cell.query);
  const writes = written ? [" (writes ", literal(written), ")"] : [];
  const sign = one - two > 0 ? "+" : "";
  box.replaceChildren(token("query"), ...writes, " → ", token("key"), `: shown ${significant(one)}, pinned ${significant(two)}, difference ${sign}${significant(one - two)}`);
}

// ------------------------------------------------------------------------------------------------------------------------------

for (const map of /** @type {NodeListOf<HTMLCanvasElement>} */ (document.querySelectorAll(".compared-map"))) {
  const pointed = (/** @type {MouseEvent} */ event) => state.compare && cellAt(map, state.compare, event, map.id === "pinned-map" ? rowsBeside() : undefined);
  map.addEventListener("pointermove", (event) => readOut(pointed(event) ?? undefined));
  map.addEventListener("pointerleave", () => readOut());
  map.addEventListener("click", (event) => {
    const cell = state.compare?.difference && pointed(event);
    if (cell) pointAt(cell.query, cell.key);
  });
  // the keys of the heatmap: arrows, zoom, next head
  map.addEventListener("keydown", (event) => {
    const { key, shiftKey, ctrlKey, metaKey, altKey } = event;
    const same = new KeyboardEvent("keydown", { key, shiftKey, ctrlKey, metaKey, altKey, cancelable: true });
    if (!element("chart").dispatchEvent(same)) event.preventDefault();
  });
}
element("pin").addEventListener("click", () => {
  if (isPinnedShown()) unpin();
  else if (state.head) pin({ head: headId(state.head), text: textAsked() });
  writeAddress();
});
element("to-compare").addEventListener("click", () => {
  element("compare").scrollIntoView();
  element("unpin").focus({ preventScroll: true });
});
element("unpin").addEventListener("click", () => {
  unpin();
  writeAddress();
  element("pin").focus();
});
let width = 0;
new ResizeObserver(() => {
  const isWider = width !== element("pinned").clientWidth; // a drawn map changes the height only
  width = element("pinned").clientWidth;
  if (isWider) requestAnimationFrame(draw);
}).observe(element("pinned"));
on("ready", () => {
  for (const size of ["inner_width", "inner_height"]) figures.map.properties[size].change.connect(draw);
});
on("compare", showCompared);
on("compared_cell", () => readOut());
on("pointed", readOut); // the cell at the pointer over the shown map (pointer.js)
for (const event of ["cell", "drawn", "settings", "theme", "fonts"]) on(event, draw);
for (const event of ["head", "model"]) on(event, showButton);
on("head", showCompared);
let isFirst = true; // the recording to compare with is pinned once, and can be closed
on("model", () => {
  if (isFirst && state.model.compared && !pinned) pin({ head: "same", text: { recording: true } });
  isFirst = false;
});
keepInAddress("pin", pinText, restorePin);
