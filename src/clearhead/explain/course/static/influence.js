// Influence of each token on one output row: its weight times the length of its value.

import { calculate } from "clearhead/calculate.js";
import { create } from "clearhead/elements.js";
import { createHandle, createMatrix, createSelect, vectorLength } from "clearhead/widget_parts.js";

/** @param {HTMLElement} element @param {{ layer: Layer, row?: number }} options row: query, counted from 1 */
export function mount(element, { layer, row = 1 }) {
  const { matrices } = calculate(layer);
  const weights = matrices.get("weights-1")?.values ?? [];
  const values = matrices.get("value-1")?.values ?? [];
  const state = { row: row - 1 };
  const handle = createHandle(() => state.row + 1);
  const tables = create("div", { class: "tables" });
  const say = create("p", { class: "say", "aria-live": "polite" });

  function show() {
    const shares = weights[state.row];
    const lengths = values.map(vectorLength);
    const influences = shares.map((share, key) => share * lengths[key]);
    const rows = ["weight", "length of v", "weight × length"];
    const most = [shares, lengths, influences].map((cells) => cells.indexOf(Math.max(...cells)));
    tables.replaceChildren(
      createMatrix(`What reaches the output row of “${layer.tokens[state.row]}”`, {
        rows, columns: layer.tokens, values: [shares, lengths, influences], digits: 3, cellClass: (line, column) => (most[line] === column ? "changed" : ""),
      }),
    );
    const [weight, , influence] = most.map((key) => layer.tokens[key]);
    say.textContent = weight === influence ? `“${weight}” has the largest weight and the largest influence.` : `“${weight}” has the largest weight, but “${influence}” has the largest influence.`;
  }

  element.append(
    create("div", { class: "controls" },
      createSelect("Output row of", layer.tokens, state.row, (index) => {
        state.row = index;
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
