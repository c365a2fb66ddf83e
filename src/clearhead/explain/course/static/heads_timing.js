// Timing of the same queries, keys and values: a loop over heads, one product, and heads on several cores.

import { create, createButton } from "clearhead/elements.js";
import { largestDifference, loopOverHeads, makeProblem, oneProduct } from "clearhead/head_products.js";
import { createHandle, createSelect } from "clearhead/widget_parts.js";
import { startWorkers, workerCount } from "clearhead/head_workers.js";

/** @typedef {import("clearhead/head_products.js").Problem} Problem */
/** @typedef {{ title: string, run: () => Promise<unknown> | unknown, times: number[], repeats: number }} Way */

const [WARM_UPS, LEAST_ROUNDS, MOST_ROUNDS] = [2, 3, 15];
const BUDGET = 1500; // milliseconds for the rounds of all ways
const LEAST_SAMPLE = 4; // milliseconds; browsers round the clock, so that shorter calls are repeated
const CHOICES = { tokens: [8, 32, 128], width: [64, 256, 512], heads: [1, 2, 4, 8, 16, 32, 64] };

/** @param {number[]} values */
const median = (values) => [...values].sort((one, other) => one - other)[values.length >> 1];

/** Let the browser draw. */
const pause = () => new Promise((resolve) => setTimeout(resolve));

/** Time one call in milliseconds. @param {Way} way */
async function sample(way) {
  const start = performance.now();
  for (let repeat = 0; repeat < way.repeats; repeat += 1) await way.run();
  return (performance.now() - start) / way.repeats;
}

/** Time all ways in turn, so that another program on the machine slows all of them. @param {Way[]} ways */
async function measure(ways) {
  for (const way of ways) {
    for (let round = 0; round < WARM_UPS; round += 1) way.repeats = Math.max(1, Math.min(200, Math.ceil(LEAST_SAMPLE / Math.max(await sample(way), 0.02))));
  }
  const start = performance.now();
  for (let round = 0; round < MOST_ROUNDS && (round < LEAST_ROUNDS || performance.now() - start < BUDGET); round += 1) {
    for (const way of ways) {
      way.times.push(await sample(way));
      await pause();
    }
  }
}

/** @param {number} value */
const milliseconds = (value) => `${value < 1000 ? value.toPrecision(3) : Math.round(value)} ms`;

/** @param {string} text */
const capitalized = (text) => text[0].toUpperCase() + text.slice(1);

/** @param {string} title @param {number[]} times @param {number} longest @param {string} [missing] reason why there are no times */
function resultRow(title, times, longest, missing = "") {
  const bar = create("div", { class: "time-bar" });
  bar.style.width = times.length ? `${(100 * Math.min(...times)) / longest}%` : "0";
  const cells = times.length ? [Math.min(...times), median(times), Math.max(...times)].map((value) => create("td", {}, milliseconds(value))) : [create("td", { colspan: 3 }, missing)];
  return create("tr", {}, create("th", { scope: "row" }, title, bar), ...cells);
}

/** @param {HTMLElement} element @param {{ tokens?: number, width?: number, heads?: number }} options */
export function mount(element, options) {
  const sizes = { tokens: options.tokens ?? 32, width: options.width ?? 64, heads: options.heads ?? 8 };
  const state = { head_counts: 0, difference: NaN, ratio: NaN };
  const measured = new Set();
  const body = create("tbody");
  const say = create("p", { class: "say", role: "status" }, "Nothing is measured yet.");
  const note = create("p", { class: "quiet" });
  const button = createButton("Measure", () => void run(), { class: "button start" });

  async function run() {
    button.disabled = true;
    say.textContent = "Measuring …";
    await pause();
    try {
      await measureAll();
    } catch (error) {
      say.textContent = `The measurement stopped: ${error instanceof Error ? error.message : error}. Try again.`;
    } finally {
      button.disabled = false;
    }
    handle.announce();
  }

  async function measureAll() {
    const problem = makeProblem({ ...sizes });
    const cores = workerCount(problem.sizes.heads);
    const workers = await startWorkers(problem, cores).catch(() => undefined);
    try {
      await compare(problem, cores, workers);
    } finally {
      workers?.stop();
    }
  }

  /** @param {Problem} problem @param {number} cores @param {Awaited<ReturnType<typeof startWorkers>> | undefined} workers */
  async function compare(problem, cores, workers) {
    const { tokens, width, heads } = problem.sizes;
    /** @type {(title: string, run: Way["run"]) => Way} */
    const way = (title, call) => ({ title, run: call, times: [], repeats: 1 });
    const loop = way(`loop: ${3 * heads} products, one after another`, () => loopOverHeads(problem));
    const once = way(`one product: (${tokens}, ${width}) × (${width}, ${3 * width})`, () => oneProduct(problem));
    const parallel = way(cores === 1 ? "heads on 1 core" : `heads on ${cores} cores at once`, () => workers?.run());
    await measure(workers ? [loop, once, parallel] : [loop, once]);
    const whole = oneProduct(problem);
    const results = workers ? [loopOverHeads(problem), await workers.run()] : [loopOverHeads(problem)];
    state.difference = Math.max(...results.map((parts) => largestDifference(parts, whole, tokens)));
    state.ratio = Math.min(...loop.times) / Math.min(...once.times);
    measured.add(heads);
    state.head_counts = measured.size;
    const longest = Math.max(...[loop, once, parallel].filter((each) => each.times.length).map((each) => Math.min(...each.times)));
    body.replaceChildren(...[loop, once, parallel].map((each) => resultRow(each.title, each.times, longest, "this browser starts no workers here")));
    const speeds = [`One product: ${state.ratio.toFixed(2)} times as fast as the loop.`];
    if (parallel.times.length) speeds.push(`${capitalized(parallel.title)}: ${(Math.min(...loop.times) / Math.min(...parallel.times)).toFixed(2)} times.`);
    say.textContent = `${speeds.join(" ")} Largest difference between the results: ${state.difference}.`;
    note.textContent = `Every way needs ${(3 * tokens * width * width).toLocaleString("en-US")} multiply-adds. Rounds: ${loop.times.length}. The fastest counts, because other programs can only slow a round down.`;
  }

  const handle = createHandle(() => ({ ...state }));
  const menus = /** @type {(keyof typeof CHOICES)[]} */ (["tokens", "width", "heads"]).map((key) => {
    const choices = CHOICES[key];
    return createSelect(key === "width" ? "d_model" : key, choices.map(String), choices.indexOf(sizes[key]), (index) => {
      sizes[key] = choices[index];
    });
  });
  const header = ["way", "fastest", "median", "slowest"].map((text) => create("th", { scope: "col" }, text));
  element.append(
    create("div", { class: "controls" }, ...menus, button),
    create("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Times" }, create("table", { class: "times" }, create("thead", {}, create("tr", {}, ...header)), body)),
    say,
    note,
  );
  return handle;
}
