// Products of random vectors of any width: the wider they are, the closer their cosines are to 0.

import { create, createButton } from "clearhead/elements.js";
import { createHandle, createMatrix, createSelect, createSlider, dotProduct, formatNumber, normalNumbers, vectorLength } from "clearhead/widget_parts.js";

const VECTORS = 6;
const PAIRS = 1000;
const SHOWN = ["cosine", "dot product"];

/** @param {HTMLElement} element @param {{ seed?: number, exponent?: number }} options width = 2 ** exponent */
export function mount(element, { seed = 1, exponent = 1 }) {
  const state = { seed, exponent, shown: 0 };
  const handle = createHandle(() => ({ width: 2 ** state.exponent, spread: cosineSpread(2 ** state.exponent, state.seed) }));
  const table = create("div", { class: "tables" });
  const say = create("p", { class: "say", "aria-live": "polite" });

  /** @param {Partial<typeof state>} next */
  function change(next) {
    Object.assign(state, next);
    show();
    handle.announce();
  }

  function show() {
    const width = 2 ** state.exponent;
    const draw = normalNumbers(state.seed);
    const vectors = Array.from({ length: VECTORS }, () => Array.from({ length: width }, draw));
    const labels = vectors.map((_, index) => `v${index + 1}`);
    const values = vectors.map((first) =>
      vectors.map((second) => dotProduct(first, second) / (state.shown === 0 ? vectorLength(first) * vectorLength(second) : 1)),
    );
    const caption = `${state.shown === 0 ? "Cosines" : "Dot products"} of ${VECTORS} random vectors of width ${width}`;
    table.replaceChildren(createMatrix(caption, { rows: labels, columns: labels, values, limit: state.shown === 0 ? 1 : undefined }));
    say.textContent = `${PAIRS.toLocaleString("en")} other random pairs: the typical size of the cosine (root mean square) is ${formatNumber(
      handle.value().spread, 3)}. 1/√${width} is ${formatNumber(width ** -0.5, 3)}.`;
  }

  element.append(
    create("div", { class: "controls" },
      createSlider("Width", { min: 1, max: 10, step: 1, value: exponent, text: (value) => `${2 ** value} numbers` }, (value) => change({ exponent: value })).element,
      createSelect("Show", SHOWN, 0, (shown) => change({ shown })),
      createButton("Draw other vectors", () => change({ seed: state.seed + 1 }), { class: "button" }),
    ),
    table,
    say,
  );
  show();
  return handle;
}

/** Return the root mean square of the cosines of random pairs. @param {number} width @param {number} seed */
function cosineSpread(width, seed) {
  const draw = normalNumbers(seed + 1000);
  let sum = 0;
  for (let pair = 0; pair < PAIRS; pair += 1) {
    let product = 0;
    let first = 0;
    let second = 0;
    for (let index = 0; index < width; index += 1) {
      const a = draw();
      const b = draw();
      product += a * b;
      first += a * a;
      second += b * b;
    }
    sum += product ** 2 / (first * second);
  }
  return Math.sqrt(sum / PAIRS);
}
