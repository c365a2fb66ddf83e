// Entry point of a live explain page: replaces the steps that Python wrote, and keeps the heading, menu and costs up to date.

import { create, createButton } from "clearhead/elements.js";
import { formulaBlock } from "clearhead/formula_math.js";
import { mountLive } from "clearhead/mount_live.js";
import { countNoun } from "clearhead/step_wording.js";
import { costSentences, wholeFormula } from "clearhead/whole_formula.js";

/** @param {string} id @returns {any} */
const byId = (id) => document.getElementById(id);
const config = JSON.parse(byId("live-config").textContent);
const counting = byId("counts").textContent.match(/[^.]*\.\s*$/)?.[0].trim() ?? "";

document.addEventListener("stepschange", fillMenu, { capture: true }); // before the navigation reads it
const live = mountLive(/** @type {HTMLElement} */ (document.querySelector("main")), { ...config, level: 2, anchors: true, link: "layer" });
live.onChange(describe);
describe();
addHistoryButtons();
dispatchEvent(new HashChangeEvent("hashchange")); // the section of the address is a new one

/** Put undo and redo into the bar that stays on the screen, where a phone without a keyboard needs them. */
function addHistoryButtons() {
  const signs = { undo: "↶", redo: "↷" };
  const pairs = Object.entries(signs).map(([name, sign]) => {
    const original = /** @type {HTMLButtonElement} */ (live.element.querySelector(`[data-act=${name}]`));
    const button = createButton(sign, () => original.click(), { "aria-label": original.textContent ?? "", title: original.title });
    new MutationObserver(() => (button.disabled = original.disabled)).observe(original, { attributeFilter: ["disabled"] });
    button.disabled = original.disabled;
    return button;
  });
  byId("theme").before(...pairs);
}

function fillMenu() {
  const sections = [...document.querySelectorAll("main section")];
  const title = (/** @type {Element} */ section) => {
    const [position, heading] = section.querySelectorAll(".number, .heading");
    return `${position.textContent}. ${heading.textContent}`;
  };
  byId("steps").replaceChildren(...sections.map((section) => create("option", { value: section.id }, title(section))));
}

function describe() {
  const calculation = live.calculation();
  const { layer } = calculation;
  const lines = wholeFormula(calculation);
  const shown = [...byId("whole").children].map((line) => line.getAttribute("aria-label"));
  if (JSON.stringify(lines) !== JSON.stringify(shown)) byId("whole").replaceChildren(...lines.map(formulaBlock));
  const steps = document.querySelectorAll("main section").length;
  byId("counts").textContent = `${countNoun(layer.tokens.length, "token")}, ${countNoun(layer.heads, "head")}, ${countNoun(steps, "step")}. ${counting}`;
  if (!config.steps) byId("costs").replaceChildren(...costSentences(calculation).map((line) => create("p", { class: "total" }, line)));
}
