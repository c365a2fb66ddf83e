// Short ways for the keyboard: links to the regions of the page, and no tab stop on Bokeh's figures, which have no names.
// The address holds the selection, so a link moves the focus instead.

import { element } from "clearhead/dom.js";
import { figures } from "clearhead/heatmap.js";
import { on } from "clearhead/state.js";

element("skip-links").addEventListener("click", (/** @type {MouseEvent} */ event) => {
  const link = /** @type {HTMLElement} */ (event.target).closest("a");
  if (!link) return;
  event.preventDefault();
  const region = element(/** @type {string} */ (link.dataset.region));
  region.tabIndex = -1; // focusable, but not a tab stop
  region.focus();
  region.scrollIntoView();
});

function skipFigures() {
  for (const figure of [figures.map, figures.entropy, figures.received]) {
    const canvas = window.Bokeh?.index.find_one(figure)?.canvas_view?.el.shadowRoot;
    for (const layer of canvas?.querySelectorAll("[tabindex]") ?? []) layer.tabIndex = -1; // the region around them has the keys
  }
}

for (const event of ["head", "drawn"]) on(event, skipFigures);
