// "Save as report": a dialog for title and note, and the download of the report that the server writes.

import { toAddress } from "clearhead/address.js";
import { element } from "clearhead/dom.js";
import { download, fileName } from "clearhead/export.js";
import { textAsked } from "clearhead/state.js";

/** @type {AbortController | undefined} */
let running;

/** @param {string} text @param {boolean} [isError] */
const say = (text, isError = false) => Object.assign(element("report-status"), { textContent: text, className: isError ? "error" : "quiet" });

/** Return the address of the report. Its view has no text and no head of another text, because a report has one text. */
function reportAddress() {
  const view = new URLSearchParams(toAddress().slice(1));
  for (const name of ["text", "given"]) view.delete(name);
  if (view.get("pin")?.includes("@")) view.delete("pin");
  const parameters = new URLSearchParams({ ...textAsked(), view: String(view) });
  for (const name of ["title", "note"]) {
    const value = element(`report-${name}`).value.trim();
    if (value) parameters.set(name, value);
  }
  return `/report.html?${parameters}`;
}

/** @param {Event} event */
async function save(event) {
  event.preventDefault();
  if (running) return;
  running = new AbortController();
  const started = Date.now();
  const count = () => say(`Writing the report … ${Math.round((Date.now() - started) / 1000)} s`);
  count();
  const timer = setInterval(count, 1000);
  element("report-save").disabled = true;
  try {
    const answer = await fetch(reportAddress(), { signal: running.signal, cache: "no-store" });
    if (!answer.ok) throw new Error(await reasonOf(answer));
    const page = await answer.blob();
    element("report-dialog").close();
    download(page, fileName("report", "html"));
  } catch (error) {
    const { name, message } = /** @type {Error} */ (error);
    if (name !== "AbortError") say(name === "TypeError" ? "The viewer does not answer. It may have stopped." : `The report was not written: ${message}`, true);
  } finally {
    clearInterval(timer);
    running = undefined;
    element("report-save").disabled = false;
  }
}

/** Return why the server refused, in words. @param {Response} answer */
async function reasonOf(answer) {
  const isText = answer.headers.get("Content-Type")?.startsWith("text/plain");
  return isText ? (await answer.text()).slice(0, 500) : answer.statusText || `error ${answer.status}`;
}

element("save-report").addEventListener("click", () => {
  say("");
  element("report-dialog").showModal();
  element("report-title").focus();
});
element("report-form").addEventListener("submit", save);
element("report-cancel").addEventListener("click", () => element("report-dialog").close());
element("report-dialog").addEventListener("close", () => running?.abort());
