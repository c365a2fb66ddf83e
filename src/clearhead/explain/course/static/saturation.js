// One query and six keys of any width: the softmax of their scores, and its derivatives.

import { create, createButton } from "clearhead/elements.js";
import { softmaxRows } from "clearhead/matrix_math.js";
import { createHandle, createMatrix, createSlider, createToggle, dotProduct, formatNumber, normalNumbers } from "clearhead/widget_parts.js";

const KEYS = 6;

/** @param {HTMLElement} element @param {{ seed?: number, exponent?: number }} options width = 2 ** exponent */
export function mount(element, { seed = 1, exponent = 0 }) {
  const state = { seed, exponent, scaled: false };
  const handle = createHandle(() => {
    const { weights, slopes } = results();
    return { width: 2 ** state.exponent, largest: Math.max(...weights), slope: Math.max(...slopes.flat().map(Math.abs)) };
  });
  const tables = create("div", { class: "tables" });
  const say = create("p", { class: "say", "aria-live": "polite" });

  const results = () => {
    const width = 2 ** state.exponent;
    const draw = normalNumbers(state.seed);
    const query = Array.from({ length: width }, draw);
    const keys = Array.from({ length: KEYS }, () => Array.from({ length: width }, draw));
    const scores = keys.map((key) => dotProduct(query, key) / (state.scaled ? Math.sqrt(width) : 1));
    const [weights] = softmaxRows([scores]);
    const slopes = weights.map((weight, row) => weights.map((other, column) => weight * ((row === column ? 1 : 0) - other)));
    return { scores, weights, slopes };
  };

  function show() {
    const { scores, weights, slopes } = results();
    const keys = weights.map((_, index) => `k${index + 1}`);
    tables.replaceChildren(
      createMatrix(state.scaled ? "One row of scores, divided by √d, and its weights" : "One row of scores, and its weights", {
        rows: ["score", "weight"], columns: keys, values: [scores, weights], limit: 1,
      }),
      createMatrix("Derivatives: how much weight i (row) changes with score j (column)", { rows: keys, columns: keys, values: slopes, digits: 3, limit: 0.25 }),
    );
    const { largest, slope } = handle.value();
    say.textContent = `Width ${2 ** state.exponent}: the largest weight is ${formatNumber(largest, 3)}. The largest derivative is ${slope < 0.0005 ? slope.toExponential(0) : formatNumber(slope, 3)}.`;
  }

  /** @param {Partial<typeof state>} next */
  function change(next) {
    Object.assign(state, next);
    show();
    handle.announce();
  }

  element.append(
    create("div", { class: "controls" },
      createSlider("Width d", { min: 0, max: 10, step: 1, value: exponent, text: (value) => String(2 ** value) }, (value) => change({ exponent: value })).element,
      createToggle("Divide by √d", false, (scaled) => change({ scaled })),
      createButton("Draw other vectors", () => change({ seed: state.seed + 1 }), { class: "button" }),
    ),
    tables,
    say,
  );
  show();
  return handle;
}
