// Figures of a report: the heatmap and the profiles of a stored head, their axes, palette and theme, also in print.

import { paintTheme } from "clearhead/controls.js";
import { element } from "clearhead/dom.js";
import { PALETTES, colorMappers, figures, isLog, renderers } from "clearhead/heatmap.js";
import { settings } from "clearhead/state.js";
import { labelsOf, optionsFor, textsOf } from "clearhead/stored.js";

const MAX_AXIS_TOKENS = 40; // longer axes are labeled with indices
const MAX_UNCOVERED_TOKENS = 512; // longest side of a window whose masked cells are left out; larger ones show whole bins

const maximum = (/** @type {Float32Array} */ values) => values.reduce((one, other) => Math.max(one, other), 0);

/** @param {import("clearhead/stored.js").StoredHead} stored @param {StoredStack} stack */
export function drawStoredHead(stored, stack) {
  const options = optionsFor(stack);
  const values = stored.values(settings.reduce, options);
  const [rows, keys] = stack.bins;
  const { ndarray } = Bokeh.require("core/util/ndarray");
  const image = ndarray(values.map((weight) => weight || NaN), { dtype: "float32", shape: [stored.rows, stored.keys] });
  // a shade covers a range of weights: 3% with 500 keys, 6% with a million
  const shades = stack.cells ? undefined : { digits: 2, least: stack.floor ** (254 / 255) };
  const bars = (/** @type {any} */ figure, /** @type {number[]} */ edges, /** @type {Float32Array} */ value) => {
    figure.renderers[0].data_source.data = { start: edges.slice(0, -1), end: edges.slice(1), value };
  };
  const { received, entropy, sources } = figures;
  received.tags = ["mean"]; // a stored bar is the mean of its keys
  const across = Array.from({ length: Math.ceil(stack.keys / stack.bar) + 1 }, (_, index) => Math.min(stack.keys, stack.bar * index));
  bars(received, across, stored.receipts(options));
  bars(entropy, rowEdges(stack), stored.entropies());
  sources[1].data = {
    image: [image], scores: [[]], x: [0], y: [0], dw: [stored.keys * keys], dh: [stored.rows * rows],
    rows: [rows], keys: [keys], exact: [true], shades: [shades], sampled: [Boolean(stack.sampled)],
  };
}

/**
 * Fit the scales of the colors and of the bars to a window. In a short one, draw the bins again without the masked cells.
 * @param {import("clearhead/stored.js").StoredHead} stored
 * @param {StoredStack} stack
 * @param {number[]} window
 */
export function drawStoredWindow(stored, stack, [row, rowEnd, key, keyEnd]) {
  const { received, entropy, sources } = figures;
  const [down, across] = stack.bins;
  const bins = sources[1].data.image[0];
  let largest = 1e-6;
  for (let line = Math.floor(row / down); line * down < rowEnd; line++) {
    for (let column = Math.floor(key / across); column * across < keyEnd; column++) largest = Math.max(largest, bins[line * stored.keys + column] || 0);
  }
  /** @type {Record<string, { low: number, high: number }>} */
  const ends = { LogColorMapper: { low: stack.floor, high: 1 }, LinearColorMapper: { low: 0, high: largest } };
  for (const mapper of colorMappers()) mapper.setv(ends[mapper.type]);
  const fit = (/** @type {any} */ figure, /** @type {any} */ range, /** @type {number} */ first, /** @type {number} */ last) => {
    const { start, end, value } = figure.renderers[0].data_source.data;
    const inside = value.filter((/** @type {number} */ _, /** @type {number} */ index) => end[index] > first && start[index] < last);
    range.setv({ start: 0, end: 1.05 * maximum(inside) || 1 });
  };
  fit(received, received.y_range, key, keyEnd);
  fit(entropy, entropy.x_range, row, rowEnd);

  const cover = annotation("cover");
  const cells = visibleCells(stored, stack, [row, rowEnd, key, keyEnd], bins);
  cover.setv({ visible: cells !== undefined, left: key, right: keyEnd, top: row, bottom: rowEnd });
  if (cells) {
    const [height, width] = [rowEnd - row, keyEnd - key];
    const { ndarray } = Bokeh.require("core/util/ndarray");
    sources[0].data = {
      image: [ndarray(cells, { dtype: "float32", shape: [height, width] })], scores: [[]], x: [key], y: [row], dw: [width], dh: [height],
      rows: [1], keys: [1], exact: [true], uncovered: [true],
    };
  } else if (sources[0].data.image.length) {
    sources[0].data = Object.fromEntries(Object.keys(sources[0].data).map((column) => [column, []]));
  }
}

/**
 * Return the bin values of the cells of a short window, NaN for masked cells. Undefined for other windows, and without bins.
 * @param {import("clearhead/stored.js").StoredHead} stored
 * @param {StoredStack} stack
 * @param {number[]} window
 * @param {ArrayLike<number>} bins
 */
export function visibleCells({ visible, keys }, { queries, cells: isExact, bins: [down, across] }, [row, rowEnd, key, keyEnd], bins) {
  if (!visible || isExact || Math.max(rowEnd - row, keyEnd - key) > MAX_UNCOVERED_TOKENS) return undefined;
  const cells = new Float32Array((rowEnd - row) * (keyEnd - key)).fill(NaN);
  for (let start = 0; start < visible.length; start += 2 * queries) {
    for (let query = row; query < rowEnd; query++) {
      const end = Math.min(keyEnd, visible[start + queries + query]);
      const [line, shift] = [Math.floor(query / down) * keys, (query - row) * (keyEnd - key) - key];
      for (let at = Math.max(key, visible[start + query]); at < end; at++) cells[shift + at] = bins[line + Math.floor(at / across)];
    }
  }
  return cells;
}

/** Return an annotation of the map: the hatch "masked" or the "cover" under the cells of a window. @param {string} wanted */
const annotation = (wanted) => figures.map.center.find((/** @type {any} */ part) => part.name === wanted);

// each stored query is drawn up to halfway to its neighbors
function rowEdges(/** @type {StoredStack} */ { places, queries }) {
  if (!places) return Array.from({ length: queries + 1 }, (_, index) => index);
  return [0, ...places.slice(1).map((query, index) => (places[index] + 1 + query) / 2), queries];
}

/** @param {StoredStack} stack @param {number[]} window */
export function drawTicks(stack, [row, rowEnd, key, keyEnd]) {
  figures.map.left[0].axis_label = textsOf(stack, "written") ? "queries (read → written)" : "queries";
  labelAxis(stack, "query", row, rowEnd);
  labelAxis(stack, "key", key, keyEnd);
}

// PlainText, because Bokeh renders strings such as $$x$$ as TeX; bidi isolates keep right-to-left tokens apart
/** @param {StoredStack} stack @param {"query" | "key"} side @param {number} start @param {number} end */
function labelAxis(stack, side, start, end) {
  const [axis, orientation] = side === "query" ? [figures.map.left[0], 0] : [figures.map.above[0], Math.PI / 2];
  const { BasicTicker, FixedTicker, NumeralTickFormatter, PlainText } = Bokeh.Models;
  if (end - start > MAX_AXIS_TOKENS) {
    axis.setv({ ticker: new BasicTicker(), major_label_overrides: new Map(), formatter: new NumeralTickFormatter({ format: "0,0" }), major_label_orientation: 0 });
    return;
  }
  const labels = labelsOf(stack, side, start, end).map((text, offset) => /** @type {const} */ ([start + offset + 0.5, new PlainText({ text: `\u2068${text}\u2069` })]));
  axis.setv({ ticker: new FixedTicker({ ticks: labels.map(([tick]) => tick) }), major_label_overrides: new Map(labels), major_label_orientation: orientation });
}

export function setPalette() {
  for (const mapper of colorMappers()) mapper.palette = PALETTES[settings.palette];
  for (const renderer of renderers()) renderer.visible = isLog(renderer) === settings.log;
}

/** @param {{ text: string, line: string, paper: string, nothing: string }} colors */
export function setTheme({ text, line, paper, nothing }) {
  annotation("masked").hatch_color = nothing;
  annotation("cover").setv({ fill_color: paper, hatch_color: nothing });
  for (const figure of [figures.map, figures.entropy, figures.received]) {
    figure.setv({ background_fill_color: paper, border_fill_color: paper, outline_line_color: line });
    for (const axis of [...figure.left, ...figure.above, ...figure.below]) {
      axis.setv({ major_label_text_color: text, axis_label_text_color: text, axis_line_color: line, major_tick_line_color: line });
    }
  }
}

/** @param {string} scheme */
function useColorScheme(scheme) {
  document.documentElement.style.colorScheme = scheme;
  paintTheme();
  for (const figure of [figures.map, figures.entropy, figures.received]) Bokeh.index.find_one(figure).paint();
}

// print the figures at their screen size, scaled by CSS; repaint now, because the next frame would be too late
window.addEventListener("beforeprint", () => {
  element("chart").style.setProperty("--wide", element("chart").offsetWidth);
  element("chart").style.setProperty("--tall", `${element("map").offsetHeight}px`);
  useColorScheme("light");
});
window.addEventListener("afterprint", () => useColorScheme(""));
