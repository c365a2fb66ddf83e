// A part of the page as an SVG document: its drawings, and its texts where they stand.

import { draw, themeColor } from "clearhead/dom.js";
import { FONT, MARGIN } from "clearhead/picture.js";

const TITLE_HEIGHT = 30;
const DRAWN_STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "opacity", "font-size", "font-weight", "text-anchor", "dominant-baseline", "vector-effect", "display", "visibility"];

/**
 * Return a picture of an element in light colors.
 * @param {HTMLElement} box
 * @param {string} title
 */
export function regionPicture(box, title) {
  const before = box.getAttribute("style");
  // resolves light-dark() and currentColor for a light page; restored before the next frame is painted
  box.style.colorScheme = "light";
  box.style.color = themeColor("ink", "light");
  const frame = box.getBoundingClientRect();
  const drawings = [...box.querySelectorAll("svg")].map((drawing) => copyOf(drawing, frame));
  const texts = textNodes(box).flatMap((node) => textAt(node, frame));
  if (before === null) box.removeAttribute("style");
  else box.setAttribute("style", before);
  const [width, height] = [Math.ceil(frame.width) + 2 * MARGIN, Math.ceil(frame.height) + TITLE_HEIGHT + 2 * MARGIN];
  return draw(
    "svg",
    { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}`, "font-family": FONT },
    draw("title", {}, title),
    draw("rect", { width, height, fill: themeColor("paper", "light") }),
    draw("text", { x: MARGIN, y: MARGIN + 14, "font-size": 15, "font-weight": 600, fill: themeColor("ink", "light") }, title),
    draw("g", { transform: `translate(${MARGIN} ${MARGIN + TITLE_HEIGHT})` }, ...drawings, ...texts),
  );
}

/** Return a copy of a drawing in which the page's styles are attributes. @param {SVGSVGElement} drawing @param {DOMRect} frame */
function copyOf(drawing, frame) {
  const copy = /** @type {SVGSVGElement} */ (drawing.cloneNode(true));
  const copies = copy.querySelectorAll("*");
  drawing.querySelectorAll("*").forEach((part, index) => {
    const style = getComputedStyle(part);
    for (const name of DRAWN_STYLES) copies[index].setAttribute(name, style.getPropertyValue(name));
    for (const name of ["class", "style", "tabindex", "role"]) copies[index].removeAttribute(name);
  });
  for (const name of ["class", "style", "role"]) copy.removeAttribute(name);
  const { left, top, width, height } = drawing.getBoundingClientRect();
  const area = { x: left - frame.left, y: top - frame.top, width, height };
  for (const [name, value] of Object.entries(area)) copy.setAttribute(name, String(value));
  return copy;
}

/** Return the texts outside of drawings. @param {HTMLElement} box */
function textNodes(box) {
  const walker = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
  /** @type {Text[]} */
  const nodes = [];
  while (walker.nextNode()) nodes.push(/** @type {Text} */ (walker.currentNode));
  return nodes.filter((node) => node.data.trim() && !node.parentElement?.closest("svg"));
}

/** @param {Text} node @param {DOMRect} frame */
function textAt(node, frame) {
  const range = document.createRange();
  range.selectNodeContents(node);
  const { left, top, width, height } = range.getBoundingClientRect();
  if (!width || !node.parentElement) return [];
  const { fontSize, fontWeight, color, visibility } = getComputedStyle(node.parentElement);
  if (visibility === "hidden") return [];
  const attributes = { x: left - frame.left, y: top - frame.top + height / 2, "dominant-baseline": "central", "font-size": fontSize, "font-weight": fontWeight, fill: color, style: "white-space: pre" };
  return [draw("text", attributes, node.data.replace(/\s+/g, " "))];
}
