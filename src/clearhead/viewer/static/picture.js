// The heatmap as an SVG document with tokens, title and legend, and the conversion of pictures to files.

import { draw, make, themeColor } from "clearhead/dom.js";
import { clamp, significant } from "clearhead/format.js";
import { PALETTES, mapperShown } from "clearhead/heatmap.js";
import { tokenOf, valueTitle } from "clearhead/shown_matrix.js";
import { settings, state } from "clearhead/state.js";

const MAX_SIDE = 640; // pixels of the map
const MAX_CELL = 28; // pixels of a cell
const MAX_RECTANGLES = 64; // per axis; a larger map is an embedded image
const MIN_LABEL = 9; // pixels between labels
const MAX_LABEL_WIDTH = 150;
export const [FONT, FONT_SIZE, MARGIN] = ["system-ui, 'DejaVu Sans', 'BIZ UDPGothic', sans-serif", 12, 12];
const PNG_SCALE = 2;
const MAX_PNG_SIDE = 8192;

/** @typedef {import("clearhead/shown_matrix.js").ShownMatrix} ShownMatrix */
/** @typedef {import("clearhead/shown_matrix.js").Range} Range */

const ruler = make("canvas").getContext("2d");
/** @param {string} text */
function widthOf(text) {
  ruler.font = `${FONT_SIZE}px ${FONT}`;
  return ruler.measureText(text).width;
}

/**
 * Return the color of a weight on the selected scale, as Bokeh computes it.
 * @param {number} value
 * @param {{ low: number, high: number }} ends
 */
export function colorOf(value, { low, high }) {
  const palette = PALETTES[settings.palette];
  const share = settings.log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
  return palette[clamp(Math.floor(share * palette.length), 0, palette.length - 1)];
}

/**
 * Return the heatmap as an SVG element in light colors.
 * @param {ShownMatrix} matrix
 * @param {string} title
 */
export function mapPicture(matrix, title) {
  const { rows, keys } = matrix;
  const [width, height] = [Math.min(MAX_SIDE, MAX_CELL * keys.length), Math.min(MAX_SIDE, MAX_CELL * rows.length)];
  const down = axisLabels("query", rows, height);
  const across = axisLabels("key", keys, width);
  const longest = (/** @type {{ text: string }[]} */ labels) => Math.ceil(Math.max(0, ...labels.map(({ text }) => widthOf(text))));
  const left = MARGIN + longest(down) + 24;
  const top = MARGIN + 2 * 18 + longest(across) + 22;
  const legend = legendOf(matrix, left, top + height + 14);
  const total = [Math.max(left + width, left + 330, MARGIN + 1.3 * widthOf(title)) + MARGIN, top + height + 14 + 30 + MARGIN].map(Math.ceil);
  const ink = themeColor("ink", "light");
  const middle = [left + width / 2, top + height / 2];
  const text = (/** @type {Record<string, string | number>} */ attributes, /** @type {string} */ content) => draw("text", { fill: ink, ...attributes }, content);
  return draw(
    "svg",
    { xmlns: "http://www.w3.org/2000/svg", width: total[0], height: total[1], viewBox: `0 0 ${total.join(" ")}`, "font-family": FONT, "font-size": FONT_SIZE },
    draw("title", {}, title),
    draw("rect", { width: total[0], height: total[1], fill: themeColor("paper", "light") }),
    text({ x: MARGIN, y: MARGIN + 13, "font-size": 15, "font-weight": 600 }, title),
    text({ x: middle[0], y: MARGIN + 32, "text-anchor": "middle" }, "keys"),
    text({ x: MARGIN + 4, y: middle[1], "text-anchor": "middle", transform: `rotate(-90 ${MARGIN + 4} ${middle[1]})` }, state.tokens?.written ? "queries (read → written)" : "queries"),
    ...down.map(({ at, text: label }) => text({ x: left - 6, y: top + at, "text-anchor": "end", "dominant-baseline": "central" }, label)),
    ...across.map(({ at, text: label }) => text({ x: left + at, y: top - 6, "dominant-baseline": "central", transform: `rotate(-90 ${left + at} ${top - 6})` }, label)),
    ...cells(matrix, { left, top, width, height }),
    draw("rect", { x: left, y: top, width, height, fill: "none", stroke: themeColor("quiet", "light") }),
    ...legend,
  );
}

/**
 * Return labels with their distance from the start of the axis: each token if there is space, or some indices.
 * @param {"query" | "key"} side
 * @param {Range[]} ranges
 * @param {number} length pixels
 */
function axisLabels(side, ranges, length) {
  const step = length / ranges.length;
  const isReadable = step >= MIN_LABEL && ranges.every((range) => tokenOf(side, range) !== undefined);
  if (isReadable) return ranges.map((range, index) => ({ at: (index + 0.5) * step, text: clipped(tokenOf(side, range) ?? "") }));
  const every = Math.max(1, Math.ceil(ranges.length / 8));
  return ranges.flatMap(([start], index) => (index % every ? [] : [{ at: (index + 0.5) * step, text: start.toLocaleString("en") }]));
}

/** @param {string} text */
function clipped(text) {
  if (widthOf(text) <= MAX_LABEL_WIDTH) return text;
  const letters = [...text];
  while (letters.length > 1 && widthOf(`${letters.join("")}…`) > MAX_LABEL_WIDTH) letters.pop();
  return `${letters.join("")}…`;
}

/** @param {ShownMatrix} matrix @param {{ left: number, top: number, width: number, height: number }} frame */
function cells({ rows, keys, values }, { left, top, width, height }) {
  const mapper = mapperShown();
  const ends = { low: mapper.low ?? 0, high: mapper.high ?? 1 };
  const background = draw("rect", { x: left, y: top, width, height, fill: themeColor("panel", "light") });
  const [across, down] = [width / keys.length, height / rows.length];
  if (Math.max(rows.length, keys.length) <= MAX_RECTANGLES) {
    const rectangles = values.flatMap((line, row) =>
      line.flatMap((value, column) => {
        if (!value) return [];
        const box = { x: left + column * across, y: top + row * down, width: across, height: down };
        return [draw("rect", { ...box, fill: colorOf(value, ends) })];
      }),
    );
    return [background, draw("g", { "shape-rendering": "crispEdges" }, ...rectangles)];
  }
  const canvas = make("canvas", { width: keys.length, height: rows.length });
  const context = canvas.getContext("2d");
  values.forEach((line, row) =>
    line.forEach((value, column) => {
      if (!value) return;
      context.fillStyle = colorOf(value, ends);
      context.fillRect(column, row, 1, 1);
    }),
  );
  const image = { x: left, y: top, width, height, href: canvas.toDataURL(), preserveAspectRatio: "none", style: "image-rendering: pixelated" };
  return [background, draw("image", image)];
}

/** @param {ShownMatrix} matrix @param {number} x @param {number} y */
function legendOf(matrix, x, y) {
  const mapper = mapperShown();
  const palette = PALETTES[settings.palette];
  const stops = Array.from({ length: 9 }, (_, index) => draw("stop", { offset: index / 8, "stop-color": palette[Math.round((index * (palette.length - 1)) / 8)] }));
  const text = (/** @type {number} */ shift, /** @type {string} */ anchor, /** @type {string} */ content) =>
    draw("text", { x: x + shift, y: y + 24, fill: themeColor("ink", "light"), "text-anchor": anchor }, content);
  return [
    draw("defs", {}, draw("linearGradient", { id: "ramp" }, ...stops)),
    draw("rect", { x, y, width: 150, height: 10, fill: "url(#ramp)" }),
    text(0, "start", significant(mapper.low ?? 0, 2)),
    text(150, "end", significant(mapper.high ?? 1, 2)),
    draw("text", { x: x + 160, y: y + 9, fill: themeColor("ink", "light") }, `${valueTitle(matrix)}, ${settings.log ? "log" : "linear"} scale`),
  ];
}

/** @param {SVGElement} picture */
export const svgText = (picture) => `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(picture)}\n`;

/** Return a picture as PNG, with two pixels per unit. @param {SVGElement} picture @returns {Promise<Blob>} */
export async function asPng(picture) {
  const [width, height] = ["width", "height"].map((name) => Number(picture.getAttribute(name)));
  const scale = Math.min(PNG_SCALE, MAX_PNG_SIDE / Math.max(width, height));
  const address = URL.createObjectURL(new Blob([svgText(picture)], { type: "image/svg+xml" }));
  try {
    const image = make("img", { src: address });
    await image.decode();
    const canvas = make("canvas", { width: Math.round(scale * width), height: Math.round(scale * height) });
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((resolve, reject) =>
      canvas.toBlob((/** @type {Blob | null} */ blob) => (blob ? resolve(blob) : reject(new Error("this browser cannot draw the picture"))), "image/png"),
    );
  } finally {
    URL.revokeObjectURL(address);
  }
}
