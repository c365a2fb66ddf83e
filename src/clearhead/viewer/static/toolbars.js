// Groups of buttons that are one tab stop each: zoom, and the heads of a layer with "all" and "none".

import { element } from "clearhead/dom.js";
import { oneTabStop } from "clearhead/one_tab_stop.js";

const isZoom = (/** @type {Element} */ group) => !group.matches(".line-heads") && !group.querySelector("select, input");
for (const group of /** @type {HTMLElement[]} */ ([...document.querySelectorAll(".zoom")].filter(isZoom))) {
  oneTabStop(group, "button").update(() => {});
}
const heads = oneTabStop(/** @type {HTMLElement} */ (document.querySelector(".word-controls")), ".line-heads button");
heads.update(() => {});
// a new layer or text replaces the buttons
new MutationObserver(() => heads.update(() => {})).observe(element("word-heads"), { childList: true });
