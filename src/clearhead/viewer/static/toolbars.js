// Groups of buttons that are one tab stop each: zoom, and the heads of a layer.

import { element } from "clearhead/dom.js";
import { oneTabStop } from "clearhead/one_tab_stop.js";

const heads = element("word-heads");
const groups = [...document.querySelectorAll(".zoom")].filter((group) => !group.querySelector("select, input"));
for (const group of /** @type {HTMLElement[]} */ ([...groups, heads])) {
  const tabStop = oneTabStop(group, "button");
  tabStop.update(() => {});
  // a new layer or text replaces the buttons
  new MutationObserver(() => tabStop.update(() => {})).observe(group, { childList: true });
}
