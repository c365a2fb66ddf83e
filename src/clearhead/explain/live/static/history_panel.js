// Undo, redo, reset, and the list of what changed since the start.

import { create, createButton } from "clearhead/elements.js";
import { History } from "clearhead/history.js";

/** @type {HTMLElement | null} */
let lastChanged = null; // the live calculation that keys without a focus belong to

/** Text fields undo what is typed in them. @param {EventTarget | null} target */
const takesText = (target) => target instanceof Element && target.matches("textarea, input:not([type=checkbox], [type=radio])");

/**
 * Create the buttons and the list.
 * @param {Layer} initial
 * @param {(layer: Layer) => void} show
 */
export function historyPanel(initial, show) {
  const past = new History(initial);
  /** @type {HTMLElement | null} */
  let live = null;
  const undo = createButton("Undo", () => go(past.undo()), { title: "Undo the last change (Ctrl-Z)", "data-act": "undo" });
  const redo = createButton("Redo", () => go(past.redo()), { title: "Redo the last undone change (Ctrl-Y)", "data-act": "redo" });
  const reset = createButton("Reset", () => go(past.reset()), { title: "Return to the numbers of the start", "data-act": "reset" });
  const summary = create("summary");
  const list = create("ul");
  const changes = create("details", { class: "changes" }, summary, list);
  const element = create("div", { class: "control-group", role: "group", "aria-label": "History" }, undo, redo, reset, changes);

  /** @param {Layer} layer */
  function go(layer) {
    show(layer);
    update();
  }

  function update() {
    undo.disabled = !past.canUndo;
    redo.disabled = !past.canRedo;
    const lines = past.changes();
    reset.disabled = !lines.length;
    summary.textContent = `What changed (${lines.length})`;
    list.replaceChildren(...(lines.length ? lines : ["Nothing yet. Click a number with a frame and type."]).map((line) => create("li", {}, line)));
  }
  update();

  /** @param {KeyboardEvent} event */
  function key(event) {
    if (!(event.ctrlKey || event.metaKey) || event.altKey || takesText(event.target)) return;
    const name = event.key.toLowerCase();
    if (name !== "z" && name !== "y") return;
    event.preventDefault();
    go(name === "y" || event.shiftKey ? past.redo() : past.undo());
  }

  return {
    element,
    /** Add a layer. Changes of one session are one step. @param {Layer} layer @param {number} [session] */
    add(layer, session) {
      past.push(layer, session === undefined ? "" : String(session));
      lastChanged = live;
      update();
    },
    /** Listen to the keys of a live calculation, and to those without a focus after a change of it. @param {HTMLElement} root */
    listen(root) {
      live = root;
      document.addEventListener("keydown", (event) => {
        const target = event.target instanceof Element ? event.target.closest(".live") : null;
        if ((target ?? lastChanged ?? root) === root) key(event);
      });
    },
  };
}
