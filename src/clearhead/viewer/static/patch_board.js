// A picture with the grid of its patches: weights lie over it, and a frame marks one patch.

import { make } from "clearhead/dom.js";
import { clamp } from "clearhead/format.js";
import { PALETTES } from "clearhead/heatmap.js";
import { settings } from "clearhead/state.js";

const MAX_ALPHA = 0.85; // the picture stays visible below the largest weight

/**
 * Return the position of each patch among the tokens, row by row.
 * @param {PatchesRegion} region
 */
export function patchPositions({ start, rows, columns, block }) {
  return Array.from({ length: rows * columns }, (_, cell) => {
    const [row, column] = [Math.floor(cell / columns), cell % columns];
    const before = Math.floor(row / block) * (columns / block) + Math.floor(column / block);
    return start + before * block * block + (row % block) * block + (column % block);
  });
}

/**
 * Create a board. `events.point` receives the token at the pointer or undefined, `events.choose` a chosen token.
 * @param {PatchesRegion} region
 * @param {PicturePayload | undefined} picture
 * @param {BoardEvents} events
 * @returns {Board}
 */
export function patchBoard(region, picture, events) {
  const { rows, columns } = region;
  const positions = patchPositions(region);
  const cellOf = new Map(positions.map((position, cell) => [position, cell]));
  const canvas = make("canvas", { width: columns, height: rows });
  const spot = make("div", { className: "spot", hidden: true });
  const cells = make("div", { className: "cells" });
  cells.style.backgroundSize = `${100 / columns}% ${100 / rows}%`;
  const image = picture && make("img", { src: picture.url, alt: "", draggable: false });
  const board = make("div", { className: "board", tabIndex: 0 }, image, canvas, cells, spot);
  board.style.aspectRatio = picture ? `${picture.width} / ${picture.height}` : `${columns} / ${rows}`;
  board.setAttribute("role", "application");
  board.setAttribute("aria-roledescription", "picture");
  let marked = 0; // cell at the frame

  const cellAt = (/** @type {PointerEvent} */ { clientX, clientY }) => {
    const { left, top, width, height } = board.getBoundingClientRect();
    const [x, y] = [(clientX - left) / width, (clientY - top) / height];
    return clamp(Math.floor(y * rows), 0, rows - 1) * columns + clamp(Math.floor(x * columns), 0, columns - 1);
  };
  board.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => events.point(positions[cellAt(event)]));
  board.addEventListener("pointerleave", () => events.point(undefined));
  board.addEventListener("click", (/** @type {PointerEvent} */ event) => events.choose(positions[cellAt(event)]));
  board.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const [row, column] = [Math.floor(marked / columns), marked % columns];
    const moved = { ArrowUp: [row - 1, column], ArrowDown: [row + 1, column], ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1], Home: [0, 0], End: [rows - 1, columns - 1] }[event.key];
    if (!moved) return;
    event.preventDefault();
    mark(clamp(moved[0], 0, rows - 1) * columns + clamp(moved[1], 0, columns - 1)); // now, because keys may repeat before the answer
    events.choose(positions[marked]);
  });

  function mark(/** @type {number | undefined} */ cell) {
    spot.hidden = cell === undefined;
    if (cell === undefined) return;
    marked = cell;
    const share = (/** @type {number} */ index, /** @type {number} */ count) => `${(100 * index) / count}%`;
    Object.assign(spot.style, {
      left: share(cell % columns, columns), top: share(Math.floor(cell / columns), rows), width: share(1, columns), height: share(1, rows),
    });
  }

  return {
    element: board,
    has: (position) => cellOf.has(position),
    name: (position) => `patch ${Math.floor(/** @type {number} */ (cellOf.get(position)) / columns)},${/** @type {number} */ (cellOf.get(position)) % columns}`,
    positions,
    mark: (position) => mark(position === undefined ? undefined : cellOf.get(position)),
    paint: (weights, most) => paint(canvas, positions.map((position) => weights[position]), most),
  };
}

/** Draw weights in the palette of the heatmap, more opaque for larger ones. @param {HTMLCanvasElement} canvas @param {number[]} weights @param {number} most */
function paint(canvas, weights, most) {
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const image = context.createImageData(canvas.width, canvas.height);
  const shades = PALETTES[settings.palette].map((color) => [1, 3, 5].map((start) => parseInt(color.slice(start, start + 2), 16)));
  const least = Math.log(0.1 / weights.length); // a tenth of a uniform weight, as in the heatmap
  weights.forEach((weight, cell) => {
    const share = most > 0 ? weight / most : 0;
    const level = clamp(settings.log ? 1 - Math.log(Math.max(share, 1e-30)) / least : share, 0, 1);
    image.data.set([...shades[Math.round(255 * level)], Math.round(255 * MAX_ALPHA * level)], 4 * cell);
  });
  context.putImageData(image, 0, 0);
}
