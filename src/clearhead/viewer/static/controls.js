// Settings of the heatmap, and the colors of a light or dark page.

import { keepInAddress } from "clearhead/address.js";
import { element, themeColor } from "clearhead/dom.js";
import { showLegend } from "clearhead/heatmap.js";
import { announce, ask, on, settings, state } from "clearhead/state.js";

function settingsChanged() {
  const chosen = (/** @type {string} */ name) => /** @type {HTMLInputElement} */ (document.querySelector(`[name=${name}]:checked`)).value;
  settings.reduce = chosen("reduce");
  settings.log = chosen("scale") === "log";
  settings.hide = element("hide")?.checked ?? false;
  settings.weighted = element("weighted")?.checked ?? false;
  settings.palette = element("palette").value;
  ask("settings", settings);
  showLegend();
  announce("settings");
}

/** @param {string} parameter @param {HTMLInputElement[]} inputs one checkbox, or radio buttons */
function keepChecked(parameter, inputs) {
  const write = (/** @type {string} */ value) => {
    if (inputs.length > 1 && !inputs.some((input) => input.value === value)) return;
    if (inputs.every((input) => input.checked === (input.value === value))) return;
    for (const input of inputs) input.checked = input.value === value;
    settingsChanged();
  };
  keepInAddress(parameter, () => inputs.find((input) => input.checked)?.value ?? "", write);
}

/** Send the colors of the theme to the figures. */
export function paintTheme() {
  ask("theme", { text: themeColor("ink"), line: themeColor("line"), paper: themeColor("paper"), nothing: themeColor("hatch") });
  announce("theme");
}

// the menu closes on Escape and on a click elsewhere
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !element("more").open) return;
  element("more").open = false;
  element("more").querySelector("summary").focus();
});
document.addEventListener("click", (event) => {
  if (!element("more").contains(event.target)) element("more").open = false;
});
for (const [parameter, selector] of [["bins", "[name=reduce]"], ["scale", "[name=scale]"], ["hide", "#hide"], ["weighted", "#weighted"]]) {
  const inputs = /** @type {HTMLInputElement[]} */ ([...document.querySelectorAll(selector)]);
  if (inputs.length) keepChecked(parameter, inputs);
}
keepInAddress("palette", () => settings.palette, (value) => {
  if (value === settings.palette || ![...element("palette").options].some((option) => option.value === value)) return;
  element("palette").value = value;
  settingsChanged();
});
for (const input of document.querySelectorAll(".controls input, #palette")) input.addEventListener("change", settingsChanged);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => state.model && paintTheme());
on("drawn", showLegend);
