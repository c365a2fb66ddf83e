// The menu "Take with you": pictures and numbers of what is shown, and the link to it.

import { IN_NOTEBOOK, toAddress } from "clearhead/address.js";
import { asCsv } from "clearhead/csv.js";
import { element, make } from "clearhead/dom.js";
import { embedFont } from "clearhead/fonts.js";
import { headId, headTitle } from "clearhead/format.js";
import { asPng, mapPicture, svgText } from "clearhead/picture.js";
import { regionPicture } from "clearhead/region_picture.js";
import { drawnMatrix, shownMatrix } from "clearhead/shown_matrix.js";
import { on, stackShown, state, windowShown } from "clearhead/state.js";

const KEPT_S = 60; // a browser may read the data of a download later
const [SVG, CSV] = ["image/svg+xml", "text/csv;charset=utf-8"];

/** Show what the menu did. @param {string} text */
export const say = (text) => void (element("take-status").textContent = text);

/** Return a file name with the model and the head. @param {string} kind @param {string} ending */
export function fileName(kind, ending) {
  const [row, rowEnd, key, keyEnd] = windowShown();
  const { queries, keys } = stackShown();
  const part = kind === "map" && (rowEnd - row < queries || keyEnd - key < keys) ? `rows${row}-${rowEnd - 1}-keys${key}-${keyEnd - 1}` : "";
  const parts = ["clearhead", state.model.name, state.head && headId(state.head), kind === "map" ? part : kind];
  return `${parts.filter(Boolean).join("-").replace(/[^\p{L}\p{N}._-]+/gu, "-").slice(0, 100)}.${ending}`;
}

/** @param {Blob} data @param {string} name */
export function download(data, name) {
  const link = make("a", { href: URL.createObjectURL(data), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000 * KEPT_S);
  say(`Saved ${name}.`);
}

/** @param {string} kind "map" or "words" @param {string} ending */
async function take(kind, ending) {
  if (!state.head) return;
  const title = `${state.model.name}: ${headTitle(state.head)}`;
  const matrix = kind === "map" ? shownMatrix() : undefined;
  if (kind === "map" && !matrix) return say("The map is still being computed.");
  const name = fileName(kind, ending);
  if (matrix && ending === "csv") return download(new Blob([asCsv(matrix)], { type: CSV }), name);
  const picture = matrix ? mapPicture(drawnMatrix(matrix), title) : regionPicture(element("lines"), title);
  await embedFont(picture);
  download(ending === "svg" ? new Blob([svgText(picture)], { type: SVG }) : await asPng(picture), name);
}

async function copyLink() {
  const link = location.href.replace(/#.*/, "") + toAddress();
  const isReport = !element("run");
  const meaning = isReport
    ? "It opens this file with this view, where the file has the same address."
    : "It opens this view again in this browser while the viewer runs. Another browser needs the link from the terminal.";
  const isCopied = (await copyByClipboard(link)) || copyBySelection(link);
  element("take-link").hidden = isCopied;
  element("take-link").value = link;
  if (!isCopied) element("take-link").select();
  say(`${isCopied ? "Link copied." : "Copy this link."} ${meaning}`);
}

/** @param {string} text */
async function copyByClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // no permission, or a browser without this interface
  }
}

/** @param {string} text */
function copyBySelection(text) {
  const box = make("textarea", { value: text, className: "hidden-label" });
  const focused = /** @type {HTMLElement | null} */ (document.activeElement);
  element("take").append(box);
  box.select();
  const isCopied = document.execCommand("copy");
  box.remove();
  focused?.focus();
  return isCopied;
}

function closeMenu() {
  element("take").open = false;
  say("");
}

for (const button of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-take]"))) {
  const [kind, ending] = (button.dataset.take ?? "").split(".");
  button.addEventListener("click", () => take(kind, ending).catch((error) => say(String(error.message ?? error))));
}
element("copy-link").hidden = IN_NOTEBOOK;
element("copy-link").addEventListener("click", copyLink);
element("take").addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
  if (event.key !== "Escape" || !element("take").open) return;
  closeMenu();
  element("take").querySelector("summary").focus();
});
element("take").addEventListener("toggle", () => {
  const isDrawn = Boolean(document.querySelector("#lines svg"));
  for (const button of document.querySelectorAll("[data-take^=words]")) button.toggleAttribute("disabled", !isDrawn);
});
document.addEventListener("pointerdown", ({ target }) => {
  if (target instanceof Element && !target.closest("#take, dialog")) closeMenu();
});
on("head", () => say(""));
