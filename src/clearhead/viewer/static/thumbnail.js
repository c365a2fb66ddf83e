// The thumbnail of one head: a small heatmap with its name, one statistic and its labels.

import { make, reveal } from "clearhead/dom.js";
import { clamp, headId, headName, headTitle, statisticText } from "clearhead/format.js";
import { labelChip } from "clearhead/labels.js";
import { openHead, state } from "clearhead/state.js";

/**
 * @typedef {{ id: string, stack: string, layer: number, head: number, button: any, canvas: any, name: any, value: any,
 *   bar: any, chips: any, payload: ThumbnailPayload | undefined }} Thumbnail
 */

/** Thumbnails by canvas, for the observer of their sizes. @type {WeakMap<Element, Thumbnail>} */
const byCanvas = new WeakMap();
/** Colors by level; level 0 is a masked cell. @type {Uint32Array} */
let colors = new Uint32Array(256);

// Safari has no sizes in device pixels
const SIZE_BOX = "devicePixelContentBoxSize" in ResizeObserverEntry.prototype ? "device-pixel-content-box" : "content-box";
// a canvas has one pixel per device pixel, so that nothing is dropped when it is drawn
const sizes = new ResizeObserver((entries) => {
  for (const { target, devicePixelContentBoxSize: [exact] = [], contentRect } of entries) {
    const [width, height] = [
      pixelCount(exact?.inlineSize, contentRect.width * devicePixelRatio),
      pixelCount(exact?.blockSize, contentRect.height * devicePixelRatio),
    ];
    const thumbnail = byCanvas.get(target);
    if (!thumbnail || !width || !height || (width === thumbnail.canvas.width && height === thumbnail.canvas.height)) continue;
    Object.assign(target, { width, height });
    paintThumbnail(thumbnail);
  }
});

/** Return the exact size, unless it ignores an emulated device pixel ratio. @param {number | undefined} exact @param {number} size */
const pixelCount = (exact, size) => (exact !== undefined && Math.abs(exact - size) <= 1 ? exact : Math.round(size));

/** @param {string} stack @param {number} layer @param {number} head @returns {Thumbnail} */
export function makeThumbnail(stack, layer, head) {
  const id = headId({ stack, layer, head });
  const canvas = make("canvas", { width: 1, height: 1 });
  const [name, value, bar] = ["name", "value", "meter"].map((className) => make("span", { className }));
  const chips = make("span", { className: "chips" });
  const caption = make("span", { className: "thumb-caption" }, name, value);
  const button = make("button", { type: "button", className: "thumb", tabIndex: -1 }, canvas, bar, caption, chips);
  button.dataset.head = id;
  button.addEventListener("click", () => {
    if (matchMedia("(max-width: 60rem)").matches) reveal("head"); // in wide pages, the words show the head too
    openHead(id);
  });
  const thumbnail = { id, stack, layer, head, button, canvas, name, value, bar, chips, payload: undefined };
  byCanvas.set(canvas, thumbnail);
  sizes.observe(canvas, { box: SIZE_BOX });
  return thumbnail;
}

/** @param {Thumbnail} thumbnail */
export const discardThumbnail = ({ canvas }) => sizes.unobserve(canvas);

/**
 * Write the caption: the name of the head, one statistic and the labels.
 * @param {Thumbnail} thumbnail
 * @param {string} statistic
 * @param {boolean} isAlone not below the heading of its stack and layer, so the name includes both
 */
export function describeThumbnail(thumbnail, statistic, isAlone) {
  const { head, button, name, value, bar, chips, payload, stack } = thumbnail;
  const entropy = payload?.entropy ?? undefined;
  const shown = payload?.statistics[statistic];
  name.textContent = isAlone ? headName(thumbnail) : String(head);
  value.textContent = statisticText(statistic, shown, isAlone);
  const { keys = 2 } = state.model.stacks.find((other) => other.name === stack) ?? {};
  bar.style.setProperty("--share", clamp((entropy ?? 0) / Math.log(Math.max(keys, 2)), 0, 1).toFixed(3));
  chips.replaceChildren(...(payload?.labels ?? []).map(labelChip));
  const facts = [
    headTitle(thumbnail),
    entropy !== undefined && `entropy ${statisticText("entropy", entropy, true)}`,
    statistic !== "entropy" && typeof shown === "number" && `${headingOf(statistic)} ${statisticText(statistic, shown, true)}`,
    payload?.labels.join(", "),
  ].filter(Boolean);
  button.title = facts.join("\n");
  button.setAttribute("aria-label", facts.join(", "));
}

/** @param {string} statistic */
const headingOf = (statistic) => state.model.columns.find(([name]) => name === statistic)?.[1] ?? statistic;

/** Set the colors of all thumbnails. @param {string[]} palette @param {string} masked color of cells that the mask or "hide sinks" leaves out */
export function setThumbnailColors(palette, masked) {
  const rgb = (/** @type {string} */ color) => [1, 3, 5].map((start) => parseInt(color.slice(start, start + 2), 16));
  const hidden = (masked.match(/\d+/g) ?? ["0", "0", "0"]).slice(0, 3).map(Number);
  const bytes = [hidden, ...palette.slice(1).map(rgb)].flatMap((color) => [...color, 255]);
  colors = new Uint32Array(new Uint8Array(bytes).buffer);
}

/** @param {Thumbnail} thumbnail */
export function paintThumbnail({ canvas, payload }) {
  if (!payload) return;
  const { width, height } = canvas;
  const context = canvas.getContext("2d", { willReadFrequently: true }); // in main memory, where its pixels are written
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const levels = pooledLevels(payload, width, height);
  levels.forEach((level, index) => (pixels[index] = colors[level]));
  context.putImageData(image, 0, 0);
}

/**
 * Return the largest level of each pixel, or the level of its bin where bins are larger than pixels.
 * @param {ThumbnailPayload} payload @param {number} width @param {number} height
 */
function pooledLevels({ levels, rows, keys }, width, height) {
  const [down, across] = [pixelRanges(rows, height), pixelRanges(keys, width)];
  const bins = new Uint8Array(levels);
  const narrow = new Uint8Array(rows * width); // first along the keys, then along the queries
  for (let row = 0; row < rows; row++) {
    for (let x = 0; x < width; x++) {
      let most = 0;
      for (let key = across[x][0]; key < across[x][1]; key++) most = Math.max(most, bins[row * keys + key]);
      narrow[row * width + x] = most;
    }
  }
  const pooled = new Uint8Array(width * height);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      let most = 0;
      for (let row = down[y][0]; row < down[y][1]; row++) most = Math.max(most, narrow[row * width + x]);
      pooled[y * width + x] = most;
    }
  }
  return pooled;
}

/** Return the bins that each pixel covers. @param {number} bins @param {number} pixels @returns {[number, number][]} */
function pixelRanges(bins, pixels) {
  return Array.from({ length: pixels }, (_, pixel) => {
    if (bins > pixels) return [Math.floor((pixel * bins) / pixels), Math.ceil(((pixel + 1) * bins) / pixels)];
    const bin = Math.floor(((pixel + 0.5) * bins) / pixels);
    return [bin, bin + 1];
  });
}
