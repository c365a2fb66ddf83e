// A decoder that reads one token more at each step: with a causal mask, rows that were computed do not change.

import { calculate } from "clearhead/calculate.js";
import { setMask } from "clearhead/change_layer.js";
import { create, createButton } from "clearhead/elements.js";
import { createHandle, createMatrix, createToggle } from "clearhead/widget_parts.js";

const SAME = 1e-9;

/** @param {HTMLElement} element @param {{ layer: Layer }} options */
export function mount(element, { layer }) {
  const state = { length: 1, causal: true };
  const handle = createHandle(() => ({ length: state.length, changed: state.length > 1 ? changedRows().length : 0 }));
  const tables = create("div", { class: "tables" });
  const say = create("p", { class: "say", "aria-live": "polite" });

  /** @param {number} length */
  const matrices = (length) => {
    const shown = { ...layer, tokens: layer.tokens.slice(0, length), x: layer.x.slice(0, length), embedding: null, positions: null };
    return calculate(setMask(shown, state.causal ? "causal" : "none")).matrices;
  };
  const changedRows = () => {
    const before = matrices(state.length - 1).get("output")?.values ?? [];
    const now = matrices(state.length).get("output")?.values ?? [];
    return before.flatMap((row, index) => (row.some((value, column) => Math.abs(value - now[index][column]) > SAME) ? [index] : []));
  };

  function show() {
    const all = matrices(state.length);
    const tokens = layer.tokens.slice(0, state.length);
    const changed = state.length > 1 ? changedRows() : [];
    const weights = all.get("weights-1");
    const output = all.get("output")?.values ?? [];
    const rowClass = (/** @type {number} */ row) => (changed.includes(row) ? "changed" : row === state.length - 1 ? "fresh" : "");
    tables.replaceChildren(
      createMatrix("Weights A", { rows: tokens, columns: tokens, values: weights?.values ?? [], cellClass: (row, column) => (weights?.hidden?.[row][column] ? "hidden" : ""), rowClass }),
      createMatrix("Output Y", { rows: tokens, columns: output[0].map((_, column) => String(column + 1)), values: output, rowClass }),
    );
    const last = tokens.at(-1);
    if (state.length === 1) say.textContent = `The decoder has read “${last}”. There is one row.`;
    else if (changed.length === 0) say.textContent = `“${last}” adds one row, at the bottom. No row above it changed.`;
    else say.textContent = `“${last}” adds one row, and ${changed.length} of the ${state.length - 1} rows above changed (marked). They must be computed again.`;
    more.disabled = state.length === layer.tokens.length;
    less.disabled = state.length === 1;
  }

  /** @param {Partial<typeof state>} next */
  function change(next) {
    Object.assign(state, next);
    show();
    handle.announce();
  }

  const more = createButton("Next token", () => change({ length: state.length + 1 }), { class: "button" });
  const less = createButton("One token less", () => change({ length: state.length - 1 }), { class: "button" });
  element.append(create("div", { class: "controls" }, more, less, createToggle("Causal mask", true, (causal) => change({ causal }))), tables, say);
  show();
  return handle;
}
