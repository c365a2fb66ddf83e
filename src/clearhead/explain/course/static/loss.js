// Loss of a prediction: logits, probabilities and −ln p of the right token. The logits can be changed, by hand or by steps.

import { create, createButton, createSvg } from "clearhead/elements.js";
import { softmaxRows } from "clearhead/matrix_math.js";
import { createHandle, createSlider, formatNumber } from "clearhead/widget_parts.js";

const LIMIT = 6; // of the sliders
const RATE = 1; // learning rate of a step
const CURVE = { width: 300, height: 170, left: 34, bottom: 26, maxLoss: 5 };

/** @param {HTMLElement} element @param {{ tokens: string[], logits: number[], right: number }} options right: counted from 1 */
export function mount(element, { tokens, logits: start, right }) {
  let logits = [...start];
  const target = right - 1;
  const handle = createHandle(() => {
    const probability = softmaxRows([logits])[0][target];
    return { probability, loss: -Math.log(probability) };
  });
  const sliders = tokens.map((token, index) =>
    createSlider(`Logit of ${token}`, { min: -LIMIT, max: LIMIT, step: 0.1, value: logits[index], text: (value) => formatNumber(value, 1) }, (value) => {
      logits = logits.with(index, value);
      show();
    }),
  );
  const rows = create("tbody");
  const say = create("p", { class: "say", "aria-live": "polite" });
  const picture = create("div");

  function takeStep() {
    const probabilities = softmaxRows([logits])[0];
    logits = logits.map((value, index) => clip(value - RATE * (probabilities[index] - Number(index === target))));
    logits.forEach((value, index) => sliders[index].set(value));
    show();
  }

  function reset() {
    logits = [...start];
    logits.forEach((value, index) => sliders[index].set(value));
    show();
  }

  function show() {
    const probabilities = softmaxRows([logits])[0];
    const powers = logits.map(Math.exp);
    rows.replaceChildren(
      ...tokens.map((token, index) => {
        const bar = create("span", { class: "loss-bar" });
        bar.style.width = `${100 * probabilities[index]}%`;
        return create(
          "tr",
          { class: index === target ? "right" : undefined },
          create("th", { scope: "row" }, token, index === target && " ✓"),
          create("td", {}, formatNumber(logits[index], 2)),
          create("td", {}, formatNumber(powers[index], 2)),
          create("td", {}, formatNumber(probabilities[index], 3)),
          create("td", { class: "loss-share", "aria-hidden": "true" }, bar),
          create("td", {}, formatNumber(probabilities[index] - Number(index === target), 3)),
        );
      }),
    );
    const { probability, loss } = handle.value();
    const total = powers.reduce((sum, power) => sum + power, 0);
    say.textContent = `p = ${formatNumber(powers[target], 2)} / ${formatNumber(total, 2)} = ${formatNumber(probability, 3)}, so the loss is −ln ${formatNumber(probability, 3)} = ${formatNumber(loss, 2)}.`;
    picture.replaceChildren(curve(probability, loss));
    handle.announce();
  }

  const titles = ["token", "logit", "e^logit", "p", "", "gradient"];
  const head = create("tr", {}, ...titles.map((title) => (title ? create("th", { scope: "col" }, title) : create("td", { class: "loss-share" }))));
  const table = create("table", {}, create("thead", {}, head), rows);
  const scroll = create("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Logits and probabilities" }, table);
  const buttons = [createButton("One gradient step", takeStep, { class: "button" }), createButton("Reset", reset, { class: "button" })];
  element.append(
    create("div", { class: "controls" }, ...sliders.map((slider) => slider.element)),
    create("div", { class: "controls" }, ...buttons),
    create("div", { class: "tables" }, scroll, picture),
    say,
  );
  show();
  return handle;
}

/** @param {number} value */
const clip = (value) => Math.max(-LIMIT, Math.min(LIMIT, value));

/** Draw −ln p over p, with a dot at the present probability. @param {number} probability @param {number} loss */
function curve(probability, loss) {
  const { width, height, left, bottom, maxLoss } = CURVE;
  /** @param {number} p */
  const across = (p) => left + p * (width - left - 8);
  /** @param {number} value */
  const down = (value) => 8 + (1 - Math.min(value, maxLoss) / maxLoss) * (height - bottom - 8);
  const points = Array.from({ length: 100 }, (_, index) => (index + 1) / 100).filter((p) => -Math.log(p) <= maxLoss);
  const path = points.map((p, index) => `${index ? "L" : "M"}${across(p).toFixed(1)} ${down(-Math.log(p)).toFixed(1)}`).join(" ");
  return createSvg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `The loss falls from 4.6 to 0 as p rises from 0.01 to 1. Now p is ${formatNumber(probability, 2)}.` },
    createSvg("path", { d: `M${left} 8 V${height - bottom} H${width - 8}`, fill: "none", stroke: "var(--edge)" }),
    createSvg("path", { d: path, fill: "none", stroke: "var(--formula)", "stroke-width": 2 }),
    createSvg("circle", { cx: across(probability), cy: down(loss), r: 6, fill: "var(--mark)" }),
    ...[0, 2, 4].map((value) => createSvg("text", { x: left - 6, y: down(value) + 4, "text-anchor": "end" }, String(value))),
    ...[0, 0.5, 1].map((p) => createSvg("text", { x: across(p), y: height - 8, "text-anchor": "middle" }, String(p))),
    createSvg("text", { x: width - 12, y: 22, "text-anchor": "end" }, "loss −ln p over p"),
  );
}
