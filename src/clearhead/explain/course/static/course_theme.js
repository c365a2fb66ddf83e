// Button that switches between the light and the dark theme.

import { readSetting, saveSetting } from "clearhead/course_store.js";

export function startTheme() {
  const root = document.documentElement;
  const stored = readSetting("theme");
  if (stored === "light" || stored === "dark") root.style.colorScheme = stored;
  document.getElementById("theme")?.addEventListener("click", () => {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const shown = root.style.colorScheme || (dark ? "dark" : "light");
    root.style.colorScheme = shown === "dark" ? "light" : "dark";
    saveSetting("theme", root.style.colorScheme);
  });
}
