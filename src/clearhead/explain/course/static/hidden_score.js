// One row of scores whose last key should be hidden: what the mask adds, and the weight that is left.

import { create } from "clearhead/elements.js";
import { softmaxRows } from "clearhead/matrix_math.js";
import { createHandle, createMatrix, createSelect, formatNumber } from "clearhead/widget_parts.js";

const ADDED = [0, -1, -2, -5, -10, -Infinity];

/** @param {HTMLElement} element @param {{ scores: number[] }} options */
export function mount(element, { scores }) {
  const state = { added: 0 };
  const results = () => {
    const added = scores.map((_, index) => (index === scores.length - 1 ? state.added : 0));
    const masked = scores.map((score, index) => score + added[index]);
    return { added, masked, weights: softmaxRows([masked])[0] };
  };
  const handle = createHandle(() => results().weights[scores.length - 1]);
  const tables = create("div", { class: "tables" });
  const say = create("p", { class: "say", "aria-live": "polite" });

  function show() {
    const { added, masked, weights } = results();
    const columns = scores.map((_, index) => (index === scores.length - 1 ? "hidden key" : `key ${index + 1}`));
    const last = scores.length - 1;
    tables.replaceChildren(
      createMatrix("One row", {
        rows: ["score", "mask", "score + mask", "weight"], columns, values: [scores, added, masked, weights], digits: 3, limit: 3,
        cellClass: (row, column) => (row === 3 && column === last && weights[last] === 0 ? "hidden" : ""),
      }),
    );
    say.textContent = weights[last] === 0
      ? "e to the power of −∞ is 0: the hidden key gets exactly nothing, and the others share the whole weight."
      : `The hidden key still gets ${formatNumber(100 * weights[last], weights[last] < 0.001 ? 4 : 1)} % of the attention.`;
  }

  element.append(
    create("div", { class: "controls" },
      createSelect("The mask adds to the hidden key's score:", ADDED.map((value) => formatNumber(value, 0)), 0, (index) => {
        state.added = ADDED[index];
        show();
        handle.announce();
      }),
    ),
    tables,
    say,
  );
  show();
  return handle;
}
