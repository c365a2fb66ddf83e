// Settings of the heatmap, and the colors of a light or dark page.

import { element, themeColor } from "clearhead/dom.js";
import { showLegend } from "clearhead/heatmap.js";
import { announce, ask, on, settings, state } from "clearhead/state.js";

function settingsChanged() {
  const chosen = (/** @type {string} */ name) => /** @type {HTMLInputElement} */ (document.querySelector(`[name=${name}]:checked`)).value;
  settings.reduce = chosen("reduce");
  settings.log = chosen("scale") === "log";
  settings.hide = element("hide")?.checked ?? false;
  settings.palette = element("palette").value;
  ask("settings", settings);
  showLegend();
  announce("settings");
}

/** Send the colors of the theme to the figures. */
export function paintTheme() {
  ask("theme", { text: themeColor("ink"), line: themeColor("line"), paper: themeColor("paper"), nothing: themeColor("panel") });
  announce("theme");
}

for (const input of document.querySelectorAll(".controls input, #palette")) input.addEventListener("change", settingsChanged);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => state.model && paintTheme());
on("drawn", showLegend);
