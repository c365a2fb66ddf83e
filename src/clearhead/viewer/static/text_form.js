// The text box and the list of given texts. A typed text runs after a short pause, or at once with Enter.

import { element, make } from "clearhead/dom.js";
import { announce, ask, on, state } from "clearhead/state.js";

const PAUSE = 400; // milliseconds without a keystroke

/** Timer of a typed text that has not been sent. @type {ReturnType<typeof setTimeout> | undefined} */
let pending;
/** The typed text that was sent last and has not been answered. @type {string | undefined} */
let awaited;
let isTyping = false; // a series of typed texts is one history entry

function textShown() {
  const { name, text, given, chosen, runs, notes } = state.model;
  if (awaited === text) awaited = undefined;
  element("model").textContent = name;
  // an answer does not overwrite what was typed after the request
  const isBehind = pending !== undefined || awaited !== undefined;
  if (!isBehind) element("text").value = runs ? text : "A recording cannot run on another text.";
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
  element("run").setAttribute("aria-busy", String(busy));
  if (error) awaited = undefined;
  if (error) refuse(text);
}

/** Say that the text in the box is not the text that is shown. @param {string} reason */
function refuse(reason) {
  const { text, runs } = state.model ?? {};
  const isOther = runs && element("text").value !== text;
  element("notes").textContent = isOther ? `Not run: ${reason}. Lines and maps still show: “${text.length > 60 ? `${text.slice(0, 59)}…` : text}”` : "";
}

/** Return why a text cannot run, as far as the page can tell; empty if it can. @param {string} text */
function refusal(text) {
  const { longest } = state.model;
  if (!text.trim()) return "the text is empty";
  return text.length > longest ? `the text has ${text.length.toLocaleString("en")} characters; expected at most ${longest.toLocaleString("en")}` : "";
}

/** Run the text in the box. */
function run() {
  clearTimeout(pending);
  pending = undefined;
  const text = element("text").value;
  const reason = refusal(text);
  if (!reason) {
    awaited = text === state.model.text ? undefined : text;
    if (awaited === undefined) element("notes").textContent = state.model.notes.join("; ");
    return ask("go", { text });
  }
  Object.assign(element("status"), { className: "error", textContent: reason });
  refuse(reason);
}

function typed() {
  clearTimeout(pending);
  pending = setTimeout(() => {
    if (element("text").value !== state.model.text || awaited !== undefined) {
      announce("typed", { again: isTyping });
      isTyping = true;
    }
    run();
  }, PAUSE);
}

function endTyping() {
  isTyping = false;
  announce("typed", { again: false });
}

element("run").addEventListener("submit", (/** @type {Event} */ event) => {
  event.preventDefault();
  run();
});
element("text").addEventListener("input", typed);
element("text").addEventListener("blur", endTyping);
element("text").addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    element("run").requestSubmit();
  }
});
element("given").addEventListener("change", () => ask("go", { given: Number(element("given").value) }));
window.addEventListener("popstate", () => {
  clearTimeout(pending);
  pending = awaited = undefined;
  isTyping = false;
});
on("model", textShown);
on("status", showStatus);
