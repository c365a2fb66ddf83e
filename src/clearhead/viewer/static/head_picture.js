// A picture with one cell per head: layers down, heads across, colored by one value.

import { make } from "clearhead/dom.js";
import { clamp, headId, headTitle, stackTitle } from "clearhead/format.js";
import { PALETTES } from "clearhead/heatmap.js";
import { oneTabStop } from "clearhead/one_tab_stop.js";
import { settings, state } from "clearhead/state.js";

const MAX_HEADS_WITH_TEXT = 16; // heads of a layer; more leave no room for text in a cell
const MAX_DARK_LUMINANCE = 0.179; // above it, black text has more contrast than white text

/** @typedef {{ share: number, text: string, meaning: string, open: () => void }} PictureCell */

/** Return a function that draws the heads of some stacks into an element. @param {HTMLElement} container */
export function headPicture(container) {
  const tabStop = oneTabStop(container, "button");

  /** @param {string[]} stacks @param {(head: { stack: string, layer: number, head: number }) => PictureCell | undefined} cellOf */
  return (stacks, cellOf) => {
    const shown = state.model.stacks.filter(({ name }) => stacks.includes(name));
    tabStop.update(() => container.replaceChildren(...shown.map((stack) => stackPicture(stack, shown.length > 1, cellOf))));
  };
}

/** @param {StackPayload} stack @param {boolean} hasTitle @param {(head: any) => PictureCell | undefined} cellOf */
function stackPicture({ name, heads }, hasTitle, cellOf) {
  const across = Math.max(...heads);
  const corner = make("span");
  const columns = Array.from({ length: across }, (_, head) => make("span", { className: "number", textContent: head }));
  const rows = heads.flatMap((count, layer) => [
    make("span", { className: "number", textContent: `L${layer}` }),
    ...Array.from({ length: across }, (_, head) => (head < count ? pictureCell({ stack: name, layer, head }, cellOf, across) : make("span"))),
  ]);
  const picture = make("div", { className: "picture", role: "group", ariaLabel: `${stackTitle(name)}: layers down, heads across` }, corner, ...columns, ...rows);
  picture.style.setProperty("--heads", across);
  return make("div", { className: "pictured" }, hasTitle ? make("h3", { textContent: stackTitle(name) }) : undefined, picture);
}

/** @param {{ stack: string, layer: number, head: number }} head @param {(head: any) => PictureCell | undefined} cellOf @param {number} across */
function pictureCell(head, cellOf, across) {
  const { share, text, meaning, open } = cellOf(head) ?? { share: NaN, text: "", meaning: "no value", open: () => {} };
  const button = make("button", { type: "button", tabIndex: -1, title: `${headTitle(head)}\n${meaning}` });
  button.textContent = across <= MAX_HEADS_WITH_TEXT ? text : "";
  button.setAttribute("aria-label", `${headTitle(head)}, ${meaning}`);
  button.dataset.pictured = headId(head);
  if (state.head && headId(state.head) === headId(head)) button.setAttribute("aria-current", "true");
  if (!Number.isNaN(share)) {
    const color = PALETTES[settings.palette][Math.round(clamp(share, 0, 1) * 255)];
    Object.assign(button.style, { background: color, color: luminance(color) > MAX_DARK_LUMINANCE ? "#000" : "#fff" });
  }
  button.addEventListener("click", open);
  return button;
}

/** Return the relative luminance of WCAG. @param {string} color such as "#fde725" */
function luminance(color) {
  const parts = [1, 3, 5].map((start) => parseInt(color.slice(start, start + 2), 16) / 255);
  const [red, green, blue] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** Draw the colors of a picture with the values at their ends. @param {HTMLElement} legend @param {string} low @param {string} high */
export function pictureLegend(legend, low, high) {
  const ramp = make("span", { className: "ramp" });
  const shades = PALETTES[settings.palette];
  ramp.style.background = `linear-gradient(to right, ${[0, 32, 64, 96, 128, 160, 192, 224, 255].map((index) => shades[index]).join(", ")})`;
  legend.replaceChildren(low, ramp, high);
}
