// A sentence whose tokens can be put into another order, with the output of an attention layer for each token.

import { calculate } from "clearhead/calculate.js";
import { setPositions } from "clearhead/change_layer.js";
import { create, createButton } from "clearhead/elements.js";
import { createHandle, createMatrix, createToggle } from "clearhead/widget_parts.js";

const SAME = 1e-9;

/** @param {HTMLElement} element @param {{ layer: Layer }} options a layer with an embedding table */
export function mount(element, { layer }) {
  const start = layer.tokens.map((_, index) => index);
  const state = { order: start, positions: false, turns: 0 };
  const handle = createHandle(() => ({ moved: movedTokens(), changed: changedRows().filter(Boolean).length }));
  const tables = create("div", { class: "tables" });
  const say = create("p", { class: "say", "aria-live": "polite" });

  /** @param {number[]} order */
  const outputs = (order) => {
    const tokens = order.map((index) => layer.tokens[index]);
    const shuffled = { ...layer, tokens, x: order.map((index) => layer.x[index]), positions: null };
    return calculate(setPositions(shuffled, state.positions)).matrices;
  };
  const movedTokens = () => state.order.filter((from, position) => from !== position).length;
  const changedRows = () => {
    const before = outputs(start).get("output")?.values ?? [];
    const now = outputs(state.order).get("output")?.values ?? [];
    return now.map((row, position) => row.some((value, column) => Math.abs(value - before[state.order[position]][column]) > SAME));
  };

  /** @param {Partial<typeof state>} next */
  function change(next) {
    Object.assign(state, next);
    show();
    handle.announce();
  }

  function show() {
    const matrices = outputs(state.order);
    const changed = changedRows();
    const rows = state.order.map((index) => layer.tokens[index]);
    const columns = (/** @type {number[][]} */ values) => values[0].map((_, column) => String(column + 1));
    const x = matrices.get("input")?.values ?? [];
    const y = matrices.get("output")?.values ?? [];
    tables.replaceChildren(
      createMatrix(state.positions ? "Input X: rows of the table plus positions" : "Input X: rows of the table", { rows, columns: columns(x), values: x }),
      createMatrix("Output Y of the attention layer", { rows, columns: columns(y), values: y, digits: 3, rowClass: (row) => (changed[row] ? "changed" : "") }),
    );
    const count = changed.filter(Boolean).length;
    const moved = movedTokens();
    if (moved === 0) say.textContent = "The tokens are in their first order.";
    else if (count === 0) say.textContent = `${moved} tokens moved. Every token has the same output row as before: the rows moved with their tokens.`;
    else say.textContent = `${moved} tokens moved. ${count} of ${rows.length} output rows are new (marked): the order now matters.`;
  }

  const shuffle = () => {
    const step = 1 + (state.turns % (start.length - 1)); // another order at each click
    const order = state.order.map((_, position) => state.order[(position + step) % start.length]);
    [order[0], order[1]] = [order[1], order[0]];
    change({ order, turns: state.turns + 1 });
  };
  element.append(
    create("div", { class: "controls" },
      createButton("Shuffle the tokens", shuffle, { class: "button" }),
      createButton("First order", () => change({ order: start, turns: 0 }), { class: "button" }),
      createToggle("Add positions", false, (positions) => change({ positions })),
    ),
    tables,
    say,
  );
  show();
  return handle;
}
