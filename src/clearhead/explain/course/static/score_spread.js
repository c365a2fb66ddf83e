// Histogram of the scores of random queries and keys, for any width, with and without division by √d.

import { create, createSvg } from "clearhead/elements.js";
import { createHandle, createSlider, createToggle, formatNumber, normalNumbers } from "clearhead/widget_parts.js";

const PAIRS = 2000;
const BINS = 41;
const RANGE = 20; // scores from −RANGE to RANGE; others are counted in the outer bars
const SIZE = { width: 460, height: 190, bottom: 24 };

/** @param {HTMLElement} element @param {{ seed?: number, exponent?: number }} options width = 2 ** exponent */
export function mount(element, { seed = 3, exponent = 0 }) {
  const state = { exponent, scaled: false };
  const handle = createHandle(() => ({ width: 2 ** state.exponent, spread: spreadOf(scores()) }));
  const picture = createSvg("svg", { viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, width: SIZE.width, height: SIZE.height, role: "img", "aria-label": "Histogram of scores" });
  const say = create("p", { class: "say", "aria-live": "polite" });

  const scores = () => {
    const width = 2 ** state.exponent;
    const draw = normalNumbers(seed);
    return Array.from({ length: PAIRS }, () => {
      let sum = 0;
      for (let index = 0; index < width; index += 1) sum += draw() * draw();
      return state.scaled ? sum / Math.sqrt(width) : sum;
    });
  };

  function show() {
    const width = 2 ** state.exponent;
    const drawn = scores();
    picture.replaceChildren(...histogram(drawn));
    const expected = state.scaled ? "without division it would be √d" : `√${width} is ${formatNumber(Math.sqrt(width), 1)}`;
    say.textContent = `Width ${width}${state.scaled ? ", divided by √d" : ""}: the spread (standard deviation) of ${PAIRS.toLocaleString("en")} scores is ${formatNumber(
      spreadOf(drawn), 1)}; ${expected}. The largest is ${formatNumber(Math.max(...drawn), 1)}.`;
  }

  /** @param {Partial<typeof state>} next */
  function change(next) {
    Object.assign(state, next);
    show();
    handle.announce();
  }

  element.append(
    create("div", { class: "controls" },
      createSlider("Width d", { min: 0, max: 9, step: 1, value: exponent, text: (value) => String(2 ** value) }, (value) => change({ exponent: value })).element,
      createToggle("Divide by √d", false, (scaled) => change({ scaled })),
    ),
    picture,
    say,
  );
  show();
  return handle;
}

/** @param {number[]} values */
function spreadOf(values) {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  return Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length);
}

/** @param {number[]} values */
function histogram(values) {
  const counts = Array(BINS).fill(0);
  for (const value of values) counts[Math.min(BINS - 1, Math.max(0, Math.floor(((value + RANGE) / (2 * RANGE)) * BINS)))] += 1;
  const largest = Math.max(...counts);
  const step = SIZE.width / BINS;
  const floor = SIZE.height - SIZE.bottom;
  const bars = counts.map((count, bin) => {
    const height = (count / largest) * (floor - 6);
    return createSvg("rect", { x: bin * step + 1, y: floor - height, width: step - 2, height, fill: "var(--formula)" });
  });
  const labels = [-RANGE, -RANGE / 2, 0, RANGE / 2, RANGE].map((score) => {
    const anchor = score === -RANGE ? "start" : score === RANGE ? "end" : "middle";
    const text = `${score === -RANGE ? "≤ " : score === RANGE ? "≥ " : ""}${formatNumber(score, 0)}`;
    return createSvg("text", { x: ((score + RANGE) / (2 * RANGE)) * SIZE.width, y: SIZE.height - 6, "text-anchor": anchor }, text);
  });
  return [...bars, createSvg("line", { x1: 0, x2: SIZE.width, y1: floor, y2: floor, stroke: "var(--edge)" }), ...labels];
}
