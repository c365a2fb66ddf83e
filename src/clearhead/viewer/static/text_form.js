// The text box and the list of given texts.

import { element, make } from "clearhead/dom.js";
import { ask, on, state } from "clearhead/state.js";

function textShown() {
  const { name, text, given, chosen, runs, notes } = state.model;
  element("model").textContent = name;
  element("text").value = runs ? text : "A recording cannot run on another text.";
  element("run").querySelector("button").disabled = !runs;
  element("text").disabled = !runs;
  element("given").hidden = given.length < 2;
  element("given").replaceChildren(...given.map((line, index) => make("option", { value: index, textContent: `${index + 1}: ${line}` })));
  element("given").value = chosen ?? "";
  element("notes").textContent = notes.join("; ");
}

function showStatus() {
  if (!state.status) return;
  const { text, busy, percent, error } = state.status;
  if (element("status").textContent !== text) element("status").textContent = text; // screen readers announce each change
  element("progress").textContent = percent === null ? "" : `${percent} %`;
  element("status").className = error ? "error" : busy ? "busy" : "";
  if (error) element("notes").textContent = "";
  element("run").setAttribute("aria-busy", String(busy));
}

element("run").addEventListener("submit", (/** @type {Event} */ event) => {
  event.preventDefault();
  const text = element("text").value;
  const { longest } = state.model;
  if (text.length <= longest) return ask("go", { text });
  const message = `the text has ${text.length.toLocaleString("en")} characters; expected at most ${longest.toLocaleString("en")}`;
  Object.assign(element("status"), { className: "error", textContent: message });
});
element("text").addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    element("run").requestSubmit();
  }
});
element("given").addEventListener("change", () => ask("go", { given: Number(element("given").value) }));
on("model", textShown);
on("status", showStatus);
