// Buttons that take the calculation along: a link, TOML, JSON and a picture.

import { create, createButton } from "clearhead/elements.js";
import { IN_NOTEBOOK } from "clearhead/layer_address.js";
import { picturePng } from "clearhead/matrix_picture.js";
import { jsonFile, tomlFile } from "clearhead/state_files.js";

const KEPT_MS = 60_000; // a browser may read the data of a download later

/**
 * Create the buttons.
 * @param {{ title: string, link: () => string, layer: () => Layer, sections: () => import("clearhead/step_section.js").StepSection[], say: (text: string) => void }} page
 */
export function exportPanel({ title, link, layer, sections, say }) {
  const shownLink = create("input", { type: "text", class: "words", readonly: true, "aria-label": "Link to this calculation", hidden: true });

  async function copyLink() {
    const address = link();
    const isCopied = await copied(address);
    shownLink.hidden = isCopied;
    shownLink.value = address;
    if (!isCopied) shownLink.select();
    say(isCopied ? "Link copied. It opens this page with these numbers." : "Copy this link. It opens this page with these numbers.");
  }

  /** @param {string} ending @param {() => Blob | Promise<Blob>} write */
  async function save(ending, write) {
    const name = `${title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "calculation"}.${ending}`;
    const anchor = create("a", { href: URL.createObjectURL(await write()), download: name });
    anchor.click();
    setTimeout(() => URL.revokeObjectURL(anchor.href), KEPT_MS);
    say(`Saved ${name}.`);
  }

  const files = /** @type {[string, string, () => Blob | Promise<Blob>][]} */ ([
    ["TOML", "toml", () => new Blob([tomlFile(layer(), title)], { type: "application/toml" })],
    ["JSON", "json", () => new Blob([jsonFile(layer(), title)], { type: "application/json" })],
    ["PNG", "png", () => picturePng(sections(), title)],
  ]);
  const hints = {
    toml: "Save as a file that `clearhead explain` and `clearhead check` read",
    json: "Save the numbers as JSON",
    png: "Save a picture of the shown steps",
  };
  const buttons = files.map(([text, ending, write]) => {
    const act = () => void save(ending, write).catch((error) => say(String(error.message ?? error)));
    return createButton(text, act, { title: hints[/** @type {keyof typeof hints} */ (ending)], "data-save": ending });
  });
  const copy = createButton("Copy link", () => void copyLink(), { title: "Copy a link that carries every number", "data-save": "link" });
  const canLink = Boolean(link()) && !IN_NOTEBOOK;
  return { element: create("div", { class: "control-group", role: "group", "aria-label": "Take along" }, canLink && copy, ...buttons, canLink && shownLink) };
}

/** @param {string} text @returns {Promise<boolean>} */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // no permission, or a page that may not use the clipboard
  }
}
