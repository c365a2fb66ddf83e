// Borders of the figures: as wide as the labels, equal for figures that share a side, and cleared when the theme or a font changes.

import "clearhead/fonts.js";
import { element } from "clearhead/dom.js";
import { figures } from "clearhead/heatmap.js";
import { on } from "clearhead/state.js";

const MIN_BORDER = { left: 66, top: 50 }; // pixels for numbers, ticks and the name of the axis
const TICK_AND_NAME = 36; // pixels

const pen = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));

/** Return the width of the longest label of an axis, in pixels. @param {any} axis */
function labelWidth(axis) {
  pen.font = `${axis.major_label_text_font_size} ${axis.major_label_text_font}`;
  return Math.max(0, ...[...axis.major_label_overrides.values()].map((label) => pen.measureText(label.text ?? label).width));
}

function fitBorders() {
  const { map, entropy, received } = figures;
  const left = Math.round(Math.max(MIN_BORDER.left, labelWidth(map.left[0]) + TICK_AND_NAME));
  const top = Math.round(Math.max(MIN_BORDER.top, labelWidth(map.above[0]) + TICK_AND_NAME));
  map.setv({ min_border_left: left, min_border_top: top });
  entropy.setv({ min_border_top: top });
  received.setv({ min_border_left: left });
  for (const [name, size] of Object.entries({ left, top })) element("maps").style.setProperty(`--${name}`, `${size}px`);
}

/** Paint a figure on a canvas cleared to its edges: Bokeh leaves half of the first pixels, which would keep the colors of the former theme. @param {any} figure */
function paintAgain(figure) {
  const view = Bokeh.index.find_one(figure);
  for (const layer of [view.canvas_view.primary, view.canvas_view.overlays]) {
    layer.undo_transform((/** @type {CanvasRenderingContext2D} */ context) => context.clearRect(0, 0, layer.canvas.width, layer.canvas.height));
  }
  view.request_repaint();
}

on("ready", () => {
  for (const axis of [figures.map.left[0], figures.map.above[0]]) axis.properties.major_label_overrides.change.connect(fitBorders);
  for (const name of ["map", "entropy", "received"]) {
    const figure = figures[name];
    // the figure may be painted between the two changes, with one color of the former theme
    for (const { change } of [figure.properties.background_fill_color, figure.properties.border_fill_color]) {
      change.connect(() => paintAgain(figure));
    }
  }
  // labels that were drawn before their font had loaded
  on("fonts", () => {
    fitBorders();
    for (const name of ["map", "entropy", "received"]) paintAgain(figures[name]);
  });
  fitBorders();
});
