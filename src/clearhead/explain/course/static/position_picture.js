// Sinusoidal positions as a picture: one row for each position, one column for each wave, and products of positions.

import { create, createSvg } from "clearhead/elements.js";
import { sinusoidal } from "clearhead/matrix_math.js";
import { createHandle, createSlider, dotProduct, formatNumber } from "clearhead/widget_parts.js";

const ROWS = 32;
const CELL = 14;
const GAP = 24;
const BARS = 320;

/** @param {HTMLElement} element @param {{ width?: number, position?: number }} options */
export function mount(element, { width = 16, position = 8 }) {
  const values = sinusoidal(ROWS, width);
  const state = { position };
  const handle = createHandle(() => state.position);
  const size = { width: width * CELL + GAP + BARS, height: ROWS * CELL };
  const picture = createSvg("svg", {
    viewBox: `0 0 ${size.width} ${size.height}`, width: size.width, height: size.height, role: "img", "aria-label": `Sinusoidal positions 0 to ${ROWS - 1} with ${width} columns`,
  });
  const say = create("p", { class: "say", "aria-live": "polite" });

  function show() {
    const row = values[state.position];
    const products = values.map((other) => dotProduct(row, other));
    const largest = Math.max(...products);
    picture.replaceChildren(
      ...values.flatMap((cells, y) => cells.map((value, x) => square(x, y, value))),
      ...products.map((product, y) =>
        createSvg("rect", {
          x: width * CELL + GAP, y: y * CELL + 2, width: Math.max(0, (product / largest) * BARS), height: CELL - 4,
          fill: y === state.position ? "var(--mark)" : "var(--formula)",
        }),
      ),
      createSvg("rect", { x: 0.5, y: state.position * CELL + 0.5, width: width * CELL - 1, height: CELL - 1, fill: "none", stroke: "var(--mark)", "stroke-width": 2 }),
    );
    const first = row.slice(0, 4).map((value) => formatNumber(value)).join(", ");
    const near = state.position > 0 ? state.position - 1 : 1;
    const far = state.position < ROWS / 2 ? ROWS - 1 : 0;
    const [self, close, distant] = [state.position, near, far].map((other) => formatNumber(products[other], 1));
    say.textContent = `Position ${state.position} begins with ${first}. Its products are ${self} with itself, ${close} with position ${near}, and ${distant} with position ${far}.`;
  }

  element.append(
    create("div", { class: "controls" },
      createSlider("Position", { min: 0, max: ROWS - 1, step: 1, value: position }, (value) => {
        state.position = value;
        show();
        handle.announce();
      }).element,
    ),
    picture,
    create("p", { class: "say quiet" }, "Left: the numbers of each position, blue above 0 and orange below. Right: the dot product of the marked position with every position."),
    say,
  );
  show();
  return handle;
}

/** @param {number} x @param {number} y @param {number} value */
function square(x, y, value) {
  const color = value < 0 ? "var(--cool-color)" : "var(--warm-color)";
  return createSvg("rect", { x: x * CELL, y: y * CELL, width: CELL, height: CELL, fill: color, "fill-opacity": Math.abs(value).toFixed(2) });
}
