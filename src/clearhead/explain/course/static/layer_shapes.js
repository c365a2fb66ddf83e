// Shapes of a layer as boxes, its parameters and multiply-adds, and the cost of one wide head.

import { create } from "clearhead/elements.js";
import { createHandle } from "clearhead/widget_parts.js";
import { divisors, layerSteps, layerTotals, LIMITS } from "clearhead/layer_costs.js";

/** @typedef {import("clearhead/layer_costs.js").LayerSizes} LayerSizes */
/** @typedef {import("clearhead/layer_costs.js").Shape} Shape */
/** @typedef {import("clearhead/layer_costs.js").ShapeStep} ShapeStep */

const TITLES = /** @type {Record<string, string>} */ ({
  query: "Queries",
  key: "Keys",
  value: "Values",
  scores: "Scores, scaled; softmax makes A of them",
  head_output: "Output of a head",
  output: "Heads side by side, times W_O",
});
const ROWS = /** @type {[keyof ReturnType<typeof layerTotals>, string][]} */ ([
  ["parameters", "parameters"],
  ["projections", "multiply-adds of Q, K, V and Y"],
  ["attention", "multiply-adds of S and O"],
  ["multiplyAdds", "multiply-adds, total"],
  ["exponentials", "exponentials of the softmax"],
  ["stored", "numbers of K and V to store"],
]);

/** @param {number} value */
const counted = (value) => value.toLocaleString("en-US");

/** Side of a box in rem: it grows with the logarithm of the size. @param {number} size */
const side = (size) => `${(1.2 + 0.42 * Math.log2(size)).toFixed(2)}rem`;

/** @param {Shape} shape @param {boolean} [result] */
function box({ symbol, rows, columns }, result = false) {
  const drawn = create("span", { class: result ? "shape-box result" : "shape-box" });
  drawn.style.width = side(columns);
  drawn.style.height = side(rows);
  return create("span", { class: "shape" }, drawn, create("span", {}, symbol), create("span", { class: "sizes" }, `(${rows}, ${columns})`));
}

/** @param {ShapeStep} step @param {number} heads */
function stepRow(step, heads) {
  const owners = step.count === heads ? "heads" : "key heads";
  const times = step.count === 1 ? "" : `× ${step.count} ${owners}`;
  const cost = [`${counted(step.multiplyAdds)} multiply-adds`];
  if (step.parameters) cost.push(`${counted(step.parameters)} parameters`);
  const [left, right] = step.operands;
  return create(
    "li",
    { "data-step": step.name },
    create("div", { class: "step-title" }, TITLES[step.name], create("span", { class: "times" }, times)),
    create("div", { class: "product" }, box(left), "×", box(right), "=", box(step.result, true)),
    create("div", { class: "cost" }, cost.join(" · ")),
  );
}

/** @param {string} label @param {HTMLElement} input */
const labeled = (label, input) => create("label", {}, `${label} `, input);

/** @param {number} initial @param {number} max @returns {HTMLInputElement} */
const entry = (initial, max) => create("input", { type: "number", min: 1, max, step: 1, value: initial, class: "size" });

/** Fill a menu with numbers and choose the one nearest to a number. @param {HTMLSelectElement} menu @param {number[]} choices @param {number} chosen */
function fill(menu, choices, chosen) {
  menu.replaceChildren(...choices.map((each) => create("option", { value: each }, String(each))));
  menu.value = String(choices.reduce((best, each) => (Math.abs(each - chosen) < Math.abs(best - chosen) ? each : best)));
}

/**
 * @param {HTMLElement} element
 * @param {{ width?: number, heads?: number, tokens?: number, key_heads?: number, split?: LayerSizes["split"] }} options
 */
export function mount(element, options) {
  /** @type {LayerSizes} */
  const sizes = { tokens: options.tokens ?? 10, width: options.width ?? 512, heads: options.heads ?? 8, keyHeads: 1, split: options.split ?? "project" };
  sizes.keyHeads = options.key_heads ?? sizes.heads;
  const width = entry(sizes.width, LIMITS.width);
  const tokens = entry(sizes.tokens, LIMITS.tokens);
  /** @type {HTMLSelectElement[]} */
  const [heads, keyHeads] = [create("select", { class: "button" }), create("select", { class: "button" })];
  /** @type {HTMLSelectElement} */
  const split = create("select", { class: "button" }, create("option", { value: "project" }, "projects all of X"), create("option", { value: "slice" }, "reads its slice of X"));
  split.value = sizes.split;
  const check = create("p", { class: "say check", role: "status" });
  const steps = create("ol", { class: "shape-steps" });
  const body = create("tbody");
  const header = create("tr", {}, create("th", { scope: "col" }, "cost"), create("th", { scope: "col" }), create("th", { scope: "col" }));
  const verdict = create("p", { class: "say" });

  function show() {
    const { heads: count, width: columns } = sizes;
    const headWidth = columns / count;
    fill(heads, divisors(columns, LIMITS.heads), count);
    fill(keyHeads, divisors(count), sizes.keyHeads);
    check.textContent = `${count} × ${headWidth} = ${columns}: ${count === 1 ? "the head is" : "the heads side by side are"} as wide as X.`;
    steps.replaceChildren(...layerSteps(sizes).map((step) => stepRow(step, count)));
    const mine = layerTotals(sizes);
    const wide = layerTotals({ ...sizes, heads: 1, keyHeads: 1, split: "project" });
    header.children[1].textContent = count === 1 ? "this layer: 1 head" : `this layer: ${count} heads of ${headWidth}`;
    header.children[2].textContent = `1 head of ${columns}`;
    body.replaceChildren(
      ...ROWS.map(([key, text]) =>
        create("tr", { class: mine[key] === wide[key] ? "" : "differs", "data-row": key }, create("th", { scope: "row" }, text), create("td", {}, counted(mine[key])), create("td", {}, counted(wide[key]))),
      ),
    );
    verdict.textContent =
      mine.multiplyAdds === wide.multiplyAdds
        ? `Both layers need ${counted(mine.multiplyAdds)} multiply-adds.`
        : `This layer needs ${(mine.multiplyAdds / wide.multiplyAdds).toPrecision(3)} times the multiply-adds of one wide head.`;
    handle.announce();
  }

  /** Take over a typed size, or restore the earlier one. @param {HTMLInputElement} input @param {number} earlier @param {number} max */
  function typed(input, earlier, max) {
    const value = Math.round(Number(input.value));
    const valid = input.value.trim() !== "" && value >= 1 && value <= max ? value : earlier;
    input.value = String(valid);
    return valid;
  }

  const handle = createHandle(() => ({ ...layerTotals(sizes), ...sizes, head_width: sizes.width / sizes.heads }));
  width.addEventListener("change", () => {
    const grouped = sizes.heads / sizes.keyHeads;
    sizes.width = typed(width, sizes.width, LIMITS.width);
    fill(heads, divisors(sizes.width, LIMITS.heads), sizes.heads);
    sizes.heads = Number(heads.value);
    sizes.keyHeads = sizes.heads % grouped ? sizes.heads : sizes.heads / grouped;
    show();
  });
  tokens.addEventListener("change", () => {
    sizes.tokens = typed(tokens, sizes.tokens, LIMITS.tokens);
    show();
  });
  heads.addEventListener("change", () => {
    const grouped = sizes.heads / sizes.keyHeads;
    sizes.heads = Number(heads.value);
    sizes.keyHeads = sizes.heads % grouped ? sizes.heads : sizes.heads / grouped;
    show();
  });
  keyHeads.addEventListener("change", () => {
    sizes.keyHeads = Number(keyHeads.value);
    show();
  });
  split.addEventListener("change", () => {
    sizes.split = /** @type {LayerSizes["split"]} */ (split.value);
    show();
  });

  element.append(
    create("div", { class: "controls" }, labeled("d_model", width), labeled("heads", heads), labeled("tokens", tokens), labeled("key heads", keyHeads), labeled("each head", split)),
    check,
    steps,
    create("p", { class: "quiet" }, "Each box has the shape that stands below it. Its sides grow with the logarithm of the size."),
    create("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Costs" }, create("table", { class: "costs" }, create("thead", {}, header), body)),
    verdict,
  );
  show();
  return handle;
}
