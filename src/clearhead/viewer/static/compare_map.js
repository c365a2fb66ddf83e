// A heatmap on a plain canvas, with the tokens of its sides and the selected cell.

import { make, themeColor } from "clearhead/dom.js";
import { clamp } from "clearhead/format.js";

/**
 * @typedef {object} MapData
 * @property {number[]} window row, row_end, key, key_end
 * @property {number} row first query of the bins
 * @property {number} key first key of the bins
 * @property {number[]} bins queries and keys of each bin
 * @property {number[]} shape bins down and across
 * @property {string[]} queries tokens of the window, or empty
 * @property {string[]} keys
 * @property {(bins: ArrayLike<number>) => Float32Array | undefined} [cellsOf] cells of the window, NaN if masked, where bins are larger
 */

const [LEFT, TOP, RIGHT, BOTTOM] = [92, 84, 4, 18];
const [MIN_HEIGHT, MAX_HEIGHT] = [60, 460];
const FONT = "11px system-ui, 'DejaVu Sans', 'BIZ UDPGothic', sans-serif";

/** @typedef {{ top: number, height: number, bottom: number }} Rows pixels of the rows of a map, and of the border below */

/** @param {HTMLCanvasElement} canvas @param {MapData} data @param {Rows} [rows] */
function frameOf(canvas, { queries, keys, window: [row, rowEnd, key, keyEnd] }, rows) {
  const [left, top] = [queries.length || rows ? LEFT : 44, keys.length ? TOP : 20];
  const width = Math.max(40, canvas.clientWidth - left - RIGHT);
  const height = clamp((width / (keyEnd - key)) * (rowEnd - row), MIN_HEIGHT, MAX_HEIGHT);
  return { left, width, ...(rows ?? { top, height, bottom: BOTTOM }) };
}

/**
 * Draw a heatmap.
 * @param {HTMLCanvasElement} canvas
 * @param {MapData} data
 * @param {ArrayLike<number>} values
 * @param {(value: number) => number[]} color red, green, blue of a value that is not 0
 * @param {{ query: number, key: number } | null} cell
 * @param {Rows} [rows] of the map next to it (default: as high as its shape needs)
 */
export function drawMap(canvas, data, values, color, cell, rows) {
  const frame = frameOf(canvas, data, rows);
  const ratio = devicePixelRatio || 1;
  const height = frame.top + frame.height + frame.bottom;
  canvas.style.height = `${height}px`;
  Object.assign(canvas, { width: Math.round(canvas.clientWidth * ratio), height: Math.round(height * ratio) });
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.scale(ratio, ratio);
  const [row, rowEnd, key, keyEnd] = data.window;
  const x = (/** @type {number} */ index) => frame.left + ((index - key) / (keyEnd - key)) * frame.width;
  const y = (/** @type {number} */ index) => frame.top + ((index - row) / (rowEnd - row)) * frame.height;
  context.save();
  context.beginPath();
  context.rect(frame.left, frame.top, frame.width, frame.height);
  context.fillStyle = themeColor("panel");
  context.fill();
  context.clip();
  context.imageSmoothingEnabled = false;
  const cells = data.cellsOf?.(values);
  const [down, across] = cells ? [rowEnd - row, keyEnd - key] : data.shape;
  const [binRows, binKeys] = cells ? [1, 1] : data.bins;
  const [left, top] = cells ? [key, row] : [data.key, data.row];
  const box = [x(left), y(top), x(left + across * binKeys) - x(left), y(top + down * binRows) - y(top)];
  context.drawImage(pixels(cells ?? values, [down, across], color), box[0], box[1], box[2], box[3]);
  if (cell) {
    context.strokeStyle = themeColor("mark");
    context.lineWidth = 2;
    context.strokeRect(x(cell.key), y(cell.query), Math.max(3, x(cell.key + 1) - x(cell.key)), Math.max(3, y(cell.query + 1) - y(cell.query)));
  }
  context.restore();
  context.strokeStyle = themeColor("quiet");
  context.strokeRect(frame.left, frame.top, frame.width, frame.height);
  drawLabels(context, data, x, y, frame);
}

/** @param {ArrayLike<number>} values @param {number[]} shape @param {(value: number) => number[]} color */
function pixels(values, [down, across], color) {
  const canvas = make("canvas", { width: across, height: down });
  const context = canvas.getContext("2d");
  const image = context.createImageData(across, down);
  for (let index = 0; index < down * across; index++) {
    if (values[index]) image.data.set([...color(values[index]), 255], 4 * index); // 0 stays transparent
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {MapData} data
 * @param {(index: number) => number} x
 * @param {(index: number) => number} y
 * @param {{ left: number, top: number }} frame
 */
function drawLabels(context, { window: [row, rowEnd, key, keyEnd], queries, keys }, x, y, { left, top }) {
  context.font = FONT;
  context.fillStyle = themeColor("ink");
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const [index, text] of labels(row, rowEnd, queries)) context.fillText(text, left - 5, y(index + 0.5), left - 7);
  for (const [index, text] of labels(key, keyEnd, keys)) {
    context.save();
    context.translate(x(index + 0.5), top - 5);
    context.textAlign = keys.length ? "left" : "center";
    if (keys.length) context.rotate(-Math.PI / 2);
    context.fillText(text, 0, keys.length ? 0 : -6, keys.length ? top - 7 : undefined);
    context.restore();
  }
}

/** Return the labels of a side: its tokens, or five indices. @param {number} start @param {number} end @param {string[]} tokens @returns {[number, string][]} */
function labels(start, end, tokens) {
  if (tokens.length) return tokens.map((text, offset) => [start + offset, text]);
  const indices = [0, 0.25, 0.5, 0.75].map((share) => Math.floor(start + share * (end - start)));
  return [...new Set(indices)].map((index) => [index, index.toLocaleString("en")]);
}

/**
 * Return the cell at the pointer, if there is one.
 * @param {HTMLCanvasElement} canvas
 * @param {MapData} data
 * @param {MouseEvent} event
 * @param {Rows} [rows]
 */
export function cellAt(canvas, data, { offsetX, offsetY }, rows) {
  const { left, top, width, height } = frameOf(canvas, data, rows);
  const [row, rowEnd, key, keyEnd] = data.window;
  const [across, down] = [(offsetX - left) / width, (offsetY - top) / height];
  if (across < 0 || across >= 1 || down < 0 || down >= 1) return undefined;
  return { query: Math.floor(row + down * (rowEnd - row)), key: Math.floor(key + across * (keyEnd - key)) };
}

/** Return the value of the bin that contains a cell. @param {MapData} data @param {ArrayLike<number>} values @param {{ query: number, key: number }} cell */
export function valueAt({ row, key, bins, shape }, values, cell) {
  return values[Math.floor((cell.query - row) / bins[0]) * shape[1] + Math.floor((cell.key - key) / bins[1])];
}
