// The Bokeh figure of the heatmap: its data, its bins, its color scales.

import { element } from "clearhead/dom.js";
import { significant } from "clearhead/format.js";
import { announce, settings, stackShown } from "clearhead/state.js";

/** @type {Record<string, string[]>} */
export const PALETTES = JSON.parse(element("palettes").textContent);

/** Figures and data sources: `sources` are those of the window, then of the whole matrix. @type {Record<string, any>} */
export const figures = { map: undefined, entropy: undefined, received: undefined, sources: undefined };

/**
 * Call `start` with Bokeh's document when it is ready. Polls, because Bokeh has no such event for scripts of the page.
 * @param {(document: any) => void} start
 */
export function whenReady(start) {
  const waiting = setInterval(() => {
    const [bokehDocument] = window.Bokeh?.documents ?? [];
    const map = bokehDocument?.get_model_by_name("map");
    const names = ["map", "entropy", "received"];
    if (!map || !names.every((name) => window.Bokeh.index.find_one(bokehDocument.get_model_by_name(name)))) return;
    clearInterval(waiting);
    for (const name of names) figures[name] = bokehDocument.get_model_by_name(name);
    const source = (/** @type {string} */ name) => map.renderers.find((/** @type {any} */ renderer) => renderer.name === name).data_source;
    figures.sources = ["detail", "overview"].map(source);
    for (const { properties } of figures.sources) properties.data.change.connect(() => stackShown() && announce("drawn"));
    start(bokehDocument);
  }, 20);
}

/** Return whether a source has the shown values. The cells of a report repeat the values of its bins. @param {any} data */
const isDrawn = (data) => data.image.length > 0 && !data.uncovered?.[0];

/** Return the cells that a report draws instead of its bins in a short window, NaN for masked cells. @returns {any} */
export const uncoveredCells = () => figures.sources.find((/** @type {any} */ source) => source.data.uncovered?.[0])?.data;

/**
 * Return the bin or cell at data coordinates of the heatmap.
 * @param {number} x
 * @param {number} y
 * @returns {Bin | undefined}
 */
export function binAt(x, y) {
  const { queries, keys } = stackShown();
  if (!(x >= 0 && y >= 0 && x < keys && y < queries)) return undefined;
  for (const { data } of figures.sources) {
    if (!isDrawn(data)) continue;
    const [height, width] = data.image[0].shape;
    const [down, across] = [data.rows[0], data.keys[0]];
    const [row, column] = [Math.floor((y - data.y[0]) / down), Math.floor((x - data.x[0]) / across)];
    if (row < 0 || column < 0 || row >= height || column >= width) continue;
    const index = row * width + column;
    const scores = data.scores[0];
    return {
      query: Math.floor(data.y[0] + row * down), // a preview's bins may not align with cells
      queryEnd: Math.min(queries, Math.ceil(data.y[0] + (row + 1) * down)),
      key: Math.floor(data.x[0] + column * across),
      keyEnd: Math.min(keys, Math.ceil(data.x[0] + (column + 1) * across)),
      value: Number.isNaN(data.image[0][index]) ? 0 : data.image[0][index],
      score: scores.length ? scores[index] : undefined,
      preview: !data.exact[0],
      sampled: data.sampled?.[0],
      shades: data.shades?.[0],
    };
  }
  return undefined;
}

/**
 * Return the data coordinates of a point of the viewport, and the part of the figure that it hits.
 * @param {any} figure
 * @param {{ clientX: number, clientY: number }} point
 */
export function dataAt(figure, { clientX, clientY }) {
  const view = Bokeh.index.find_one(figure);
  const corner = view.canvas_view.el.getBoundingClientRect();
  const { left, top, right, bottom } = view.frame.bbox;
  const [sx, sy] = [clientX - corner.left, clientY - corner.top];
  const isAcross = sx >= left && sx < right;
  const isDown = sy >= top && sy < bottom;
  const part = isAcross && isDown ? "frame" : isDown && sx < left ? "query" : isAcross && sy < top ? "key" : "outside";
  return { x: view.frame.x_scale.invert(sx), y: view.frame.y_scale.invert(sy), part };
}

/** Return whether the heatmap shows ‖weight · v · W_O‖ as a share of the largest ‖v · W_O‖. */
export const isWeighted = () => Boolean(settings.weighted && stackShown()?.value_weighted);

/** Return what the shown values are: weights, or weights times the norm of the key's value. */
export const measure = (weighted = isWeighted()) => (weighted ? "weight × value norm" : "weight");

/** @param {Bin} bin */
export const isCell = (bin) => bin.queryEnd - bin.query === 1 && bin.keyEnd - bin.key === 1;

// each heatmap has one renderer per color scale; only the selected one is visible
/** @returns {any[]} */
export const renderers = () => figures.map.renderers.filter((/** @type {any} */ renderer) => renderer.tags.includes("heatmap"));
/** @param {any} renderer */
export const isLog = (renderer) => renderer.glyph.color_mapper.type === "LogColorMapper";
/** @returns {Set<any>} */
export const colorMappers = () => new Set(renderers().map((renderer) => renderer.glyph.color_mapper));
/** Return the color mapper of the selected scale. */
export const mapperShown = () => renderers().find((renderer) => isLog(renderer) === settings.log).glyph.color_mapper;

/** Return what a color of the heatmap is, such as "largest weight of each 8 × 8 bin". */
function shownValue() {
  const data = figures.sources?.find((/** @type {any} */ source) => isDrawn(source.data))?.data;
  if (!data?.exact[0] || data.rows[0] * data.keys[0] === 1) return measure();
  return `${settings.reduce === "max" ? "largest" : "mean"} ${measure()} of each ${data.rows[0]} × ${data.keys[0]} bin`;
}

// mappers whose ends, which change with the text and the window, update the legend
const followed = new Set();

/** Draw the color scale of the heatmap with its ends. */
export function showLegend() {
  const shades = PALETTES[settings.palette];
  const picked = Array.from({ length: 9 }, (_, index) => shades[Math.round((index * 255) / 8)]);
  element("ramp").style.background = `linear-gradient(to right, ${picked.join(", ")})`;
  const mapper = mapperShown();
  if (!followed.has(mapper)) {
    followed.add(mapper);
    for (const end of [mapper.properties.low, mapper.properties.high]) end.change.connect(showLegend);
  }
  element("legend-title").textContent = `${shownValue()}, ${settings.log ? "log" : "linear"} scale`;
  element("low").textContent = significant(mapper.low ?? 0, 2);
  element("high").textContent = significant(mapper.high ?? 1, 2);
}
