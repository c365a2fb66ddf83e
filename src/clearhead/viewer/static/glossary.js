// The glossary of the page: a dialog with all terms, opened by a help button in each region.

import { make } from "clearhead/dom.js";
import { TERMS } from "clearhead/terms.js";

/** Parts of the page that have a help button. */
export const REGIONS = "main > section, #statistics";
const QUESTION = "What do these words mean?";

const list = make("div");
const close = make("button", { type: "button", textContent: "Close" });
const dialog = make(
  "dialog",
  { id: "glossary" },
  make("h2", { id: "glossary-heading", textContent: "What the words mean" }),
  list,
  make("p", { className: "quiet", textContent: "More words are in docs/glossary.md, the glossary of clearhead's documentation." }),
  make("div", { className: "buttons" }, close),
);
dialog.setAttribute("aria-labelledby", "glossary-heading");

/**
 * Open the glossary with the terms of a region first.
 * @param {Element | null} region
 * @param {string} [name] term to show
 */
export function openGlossary(region, name) {
  const marks = /** @type {HTMLElement[]} */ ([...(region?.querySelectorAll("[data-term]") ?? [])]);
  const inRegion = new Set(marks.map((mark) => mark.dataset.term));
  const parts = [
    ["In this part", TERMS.filter((term) => inRegion.has(term.name))],
    [inRegion.size ? "Elsewhere" : "All words", TERMS.filter((term) => !inRegion.has(term.name))],
  ];
  list.replaceChildren(...parts.flatMap(([title, terms]) => (terms.length ? [make("h3", { textContent: title }), descriptions(/** @type {any} */ (terms))] : [])));
  dialog.showModal();
  dialog.scrollTop = 0;
  const chosen = name && [...list.querySelectorAll("dt")].find((heading) => heading.textContent === name);
  if (!chosen) return;
  chosen.className = "chosen";
  chosen.scrollIntoView({ block: "center" });
}

/** @param {import("clearhead/terms.js").Term[]} terms */
const descriptions = (terms) => make("dl", {}, ...terms.flatMap(({ name, text }) => [make("dt", { textContent: name }), make("dd", { textContent: text })]));

document.body.append(dialog);
close.addEventListener("click", () => dialog.close());
dialog.addEventListener("click", (/** @type {MouseEvent} */ event) => event.target === dialog && dialog.close()); // the backdrop
for (const region of document.querySelectorAll(REGIONS)) {
  const heading = region.querySelector("h2");
  const help = make("button", { type: "button", className: "help", textContent: "?", title: QUESTION, ariaLabel: QUESTION });
  help.addEventListener("click", () => openGlossary(region));
  heading?.after(help);
}
