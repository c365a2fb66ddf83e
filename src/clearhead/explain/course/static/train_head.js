// Widget that trains one attention head in the page: loss curve, attention map and scores change with every step.

import { create, createButton, createSvg } from "clearhead/elements.js";
import { COLORS, LETTERS, colorScores, gradientsOf, problemsOf, randomWeights, rightLetters, runHead, stepDown } from "clearhead/head_training.js";
import { createHandle, createMatrix, createSelect, formatNumber } from "clearhead/widget_parts.js";

const RATES = [0.1, 0.5, 1, 4, 30];
const FIRST_RATE = 2; // index
const SEEDS = [1, 2, 3, 4, 5];
const STEPS_PER_CLICK = 10;
const MAX_STEPS = 1000;
const STEP_MILLISECONDS = 40;
/** Problem that the page shows. The steps train on other, random problems. */
const SHOWN = { colors: [1, 0, 3, 2], letters: [1, 0, 3, 2] };
const CURVE = { width: 420, height: 190, left: 40, bottom: 26, minSteps: 100, maxLoss: 3 };

/** @param {HTMLElement} element */
export function mount(element) {
  let rate = RATES[FIRST_RATE];
  let seed = SEEDS[0];
  let weights = randomWeights(seed);
  /** @type {number[]} loss of the shown problem after each step */
  let losses = [];
  /** @type {number | undefined} */
  let timer;
  const handle = createHandle(() => {
    const result = runHead(weights, SHOWN);
    return { step: losses.length - 1, loss: result.loss, weight: smallestRight(result.weights) };
  });
  const maps = create("div", { class: "tables" });
  const say = create("div", { class: "say" });
  const run = createButton("Run", () => (timer === undefined ? start() : stop()), { class: "button train-run" });

  /** @param {number} count */
  function train(count) {
    for (let done = 0; done < count && losses.length <= MAX_STEPS; done++) {
      const { gradients } = gradientsOf(weights, problemsOf(seed, losses.length));
      weights = stepDown(weights, gradients, rate);
      losses.push(runHead(weights, SHOWN).loss);
    }
    if (losses.length > MAX_STEPS) stop();
    show();
  }

  function reset() {
    stop();
    weights = randomWeights(seed);
    losses = [runHead(weights, SHOWN).loss];
    show();
  }

  function start() {
    run.textContent = "Pause";
    timer = setInterval(() => train(1), STEP_MILLISECONDS);
  }

  function stop() {
    clearInterval(timer);
    timer = undefined;
    run.textContent = "Run";
    say.setAttribute("aria-live", "polite");
  }

  function show() {
    const result = runHead(weights, SHOWN);
    const right = rightLetters(SHOWN);
    const queries = COLORS.map((color) => `${color}?`);
    const keys = SHOWN.colors.map((color, index) => `${COLORS[color]} ${LETTERS[SHOWN.letters[index]]}`);
    /** @param {number} row @param {number} column */
    const isRight = (row, column) => (SHOWN.colors[column] === row ? "changed" : "");
    maps.replaceChildren(
      createMatrix("Attention weights: each color asks for its key", { rows: queries, columns: keys, values: result.weights, limit: 1, cellClass: isRight }),
      createMatrix("Probability of each letter", { rows: queries, columns: LETTERS, values: result.probabilities, limit: 1, cellClass: (row, column) => (right[row] === column ? "changed" : "") }),
      createMatrix("Scores: a query of a color with a key of a color", { rows: queries, columns: COLORS, values: colorScores(weights), digits: 1, limit: 6 }),
      lossCurve(losses),
    );
    say.setAttribute("aria-live", timer === undefined ? "polite" : "off");
    say.replaceChildren(
      create("p", {}, `Step ${losses.length - 1}: the loss is ${formatNumber(result.loss, 2)}. The right key gets a weight of at least ${formatNumber(smallestRight(result.weights), 2)} in every row.`),
    );
    handle.announce();
  }

  const buttons = [
    createButton("One step", () => train(1), { class: "button" }),
    createButton(`${STEPS_PER_CLICK} steps`, () => train(STEPS_PER_CLICK), { class: "button" }),
    run,
    createButton("Reset", reset, { class: "button" }),
  ];
  const lists = [
    createSelect("Learning rate", RATES.map(String), FIRST_RATE, (index) => (rate = RATES[index])),
    createSelect("Seed", SEEDS.map(String), 0, (index) => {
      seed = SEEDS[index];
      reset();
    }),
  ];
  element.append(create("div", { class: "controls" }, ...buttons, ...lists), say, maps);
  reset();
  return handle;
}

/** Return the smallest weight of a right key. @param {number[][]} weights */
const smallestRight = (weights) => Math.min(...weights.map((row, color) => row[SHOWN.colors.indexOf(color)]));

/** Draw the losses. @param {number[]} losses */
function lossCurve(losses) {
  const { width, height, left, bottom, minSteps, maxLoss } = CURVE;
  const steps = Math.max(minSteps, losses.length - 1);
  /** @param {number} step */
  const across = (step) => left + (step / steps) * (width - left - 8);
  /** @param {number} loss */
  const down = (loss) => 8 + (1 - Math.min(loss, maxLoss) / maxLoss) * (height - bottom - 8);
  const path = losses.map((loss, step) => `${step ? "L" : "M"}${across(step).toFixed(1)} ${down(loss).toFixed(1)}`).join(" ");
  const even = Math.log(LETTERS.length);
  const last = losses.length - 1;
  const picture = createSvg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `Loss over ${last} steps, from ${formatNumber(losses[0], 2)} to ${formatNumber(losses[last], 2)}` },
    createSvg("path", { d: `M${left} 8 V${height - bottom} H${width - 8}`, fill: "none", stroke: "var(--edge)" }),
    createSvg("path", { d: `M${left} ${down(even)} H${width - 8}`, fill: "none", stroke: "var(--quiet)", "stroke-dasharray": "4 4" }),
    createSvg("path", { d: path, fill: "none", stroke: "var(--formula)", "stroke-width": 2 }),
    createSvg("circle", { cx: across(last), cy: down(losses[last]), r: 4, fill: "var(--mark)" }),
    ...[0, 1, 2, 3].map((value) => createSvg("text", { x: left - 6, y: down(value) + 4, "text-anchor": "end" }, value === maxLoss ? `≥ ${value}` : String(value))),
    ...[0, steps / 2, steps].map((step) => createSvg("text", { x: across(step), y: height - 8, "text-anchor": step === steps ? "end" : "middle" }, String(Math.round(step)))),
    createSvg("text", { x: width - 12, y: down(even) - 6, "text-anchor": "end" }, "even guess, ln 4 = 1.39"),
  );
  return create("figure", {}, create("figcaption", {}, "Loss after each step"), picture);
}
