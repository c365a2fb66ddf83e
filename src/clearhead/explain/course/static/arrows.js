// Two arrows that can be turned and stretched, with their dot product.

import { create, createSvg } from "clearhead/elements.js";
import { createHandle, createSlider, formatNumber } from "clearhead/widget_parts.js";

const SIZE = 380;
const UNIT = 52; // pixels
const MAX_LENGTH = 3;
const MIN_LENGTH = 0.5;
const REACH = 0.45; // distance from the tip at which an arrow can be dragged
const COLORS = ["--formula", "--mark"];

/** @param {HTMLElement} element @param {{ first: [number, number], second: [number, number] }} options [angle in degrees, length] */
export function mount(element, { first, second }) {
  const arrows = [first, second].map(([angle, length], index) => ({ angle, length, name: "ab"[index] }));
  const handle = createHandle(() => measures(arrows));
  const picture = createSvg("svg", { viewBox: `0 0 ${SIZE} ${SIZE}`, width: SIZE, height: SIZE, role: "img", "aria-label": "Two arrows from one point" });
  const say = create("div", { class: "say", "aria-live": "polite" });
  const sliders = arrows.map((arrow) => [
    createSlider(`Angle of ${arrow.name}`, { min: 0, max: 359, step: 1, value: arrow.angle, text: (value) => `${value}°` }, (value) => change(arrow, { angle: value })),
    createSlider(`Length of ${arrow.name}`, { min: MIN_LENGTH, max: MAX_LENGTH, step: 0.1, value: arrow.length, text: (value) => value.toFixed(1) }, (value) =>
      change(arrow, { length: value }),
    ),
  ]);

  /** @param {{ angle: number, length: number }} arrow @param {{ angle?: number, length?: number }} next */
  function change(arrow, next) {
    Object.assign(arrow, next);
    show();
    handle.announce();
  }

  function show() {
    picture.replaceChildren(...drawing(arrows));
    const { product, cosine, angle } = measures(arrows);
    const [a, b] = arrows.map(tip);
    const shown = [a, b].map((arrow) => `(${arrow.map((value) => formatNumber(value)).join(", ")})`);
    say.replaceChildren(
      create("p", {}, `a ${equals(...a)} ${shown[0]}, b ${equals(...b)} ${shown[1]}`),
      create("p", {}, `a · b ${equals(...a, ...b)} ${a.map((value, index) => `${signed(value)} · ${signed(b[index])}`).join(" + ")} ${equals(...a, ...b, product)} `, create("strong", {}, formatNumber(product))),
      create("p", {}, `length of a × length of b × cosine ${equals(cosine)} ${arrows[0].length.toFixed(1)} × ${arrows[1].length.toFixed(1)} × ${formatNumber(cosine)} ${equals(cosine, product)} ${formatNumber(product)}`),
      create("p", {}, `The angle between them is ${angle.toFixed(0)}°, so the cosine is ${formatNumber(cosine)}.`),
    );
  }

  /** @type {number | undefined} */
  let dragged;
  /** @param {PointerEvent} event */
  const pointed = (event) => {
    const box = picture.getBoundingClientRect();
    const scale = SIZE / box.width;
    return [((event.clientX - box.left) * scale - SIZE / 2) / UNIT, (SIZE / 2 - (event.clientY - box.top) * scale) / UNIT];
  };
  picture.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => {
    const [x, y] = pointed(event);
    const distances = arrows.map((arrow) => Math.hypot(x - tip(arrow)[0], y - tip(arrow)[1]));
    if (Math.min(...distances) > REACH) return;
    dragged = distances[0] < distances[1] ? 0 : 1;
    picture.setPointerCapture(event.pointerId);
    drag(event);
  });
  picture.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => drag(event));
  for (const end of ["pointerup", "pointercancel"]) picture.addEventListener(end, () => (dragged = undefined));

  /** @param {PointerEvent} event */
  function drag(event) {
    if (dragged === undefined) return;
    const [x, y] = pointed(event);
    const angle = (Math.round((Math.atan2(y, x) * 180) / Math.PI) + 360) % 360;
    const length = Math.round(10 * Math.min(MAX_LENGTH, Math.max(MIN_LENGTH, Math.hypot(x, y)))) / 10;
    sliders[dragged][0].set(angle);
    sliders[dragged][1].set(length);
    change(arrows[dragged], { angle, length });
  }

  const controls = create("div", { class: "controls column" }, ...sliders.flat().map((slider) => slider.element));
  element.append(create("div", { class: "arrows" }, picture, create("div", {}, controls, say)));
  show();
  return handle;
}

/** @param {{ angle: number, length: number }} arrow */
const tip = ({ angle, length }) => [length * Math.cos((angle * Math.PI) / 180), length * Math.sin((angle * Math.PI) / 180)];

/** Return “=” if two decimals show these numbers exactly, otherwise “≈”. @param {...number} values */
const equals = (...values) => (values.every((value) => Math.abs(value - Number(value.toFixed(2))) < 1e-9) ? "=" : "≈");

/** Return a number in parentheses if it is negative. @param {number} value */
const signed = (value) => (formatNumber(value).startsWith("−") ? `(${formatNumber(value)})` : formatNumber(value));

/** @param {{ angle: number, length: number }[]} arrows */
function measures([a, b]) {
  const difference = Math.abs(a.angle - b.angle) % 360;
  const angle = Math.min(difference, 360 - difference);
  const cosine = Math.cos((angle * Math.PI) / 180);
  return { product: a.length * b.length * cosine, cosine, angle };
}

/** @param {{ angle: number, length: number, name: string }[]} arrows */
function drawing(arrows) {
  const center = SIZE / 2;
  const parts = [
    createSvg("line", { x1: 0, y1: center, x2: SIZE, y2: center, stroke: "var(--line)" }),
    createSvg("line", { x1: center, y1: 0, x2: center, y2: SIZE, stroke: "var(--line)" }),
  ];
  const [a, b] = arrows.map(tip);
  const along = (a[0] * b[0] + a[1] * b[1]) / (a[0] ** 2 + a[1] ** 2);
  const shadow = [center + UNIT * along * a[0], center - UNIT * along * a[1]];
  const end = [center + UNIT * b[0], center - UNIT * b[1]];
  const dashed = { stroke: "var(--quiet)", "stroke-dasharray": "4 4" };
  parts.push(createSvg("line", { x1: end[0], y1: end[1], x2: shadow[0], y2: shadow[1], ...dashed }));
  parts.push(createSvg("line", { x1: center, y1: center, x2: shadow[0], y2: shadow[1], stroke: "var(--quiet)", "stroke-width": 8, opacity: 0.35 }));
  arrows.forEach((arrow, index) => {
    const [x, y] = tip(arrow).map((value) => UNIT * value);
    const color = `var(${COLORS[index]})`;
    const turn = `translate(${center + x} ${center - y}) rotate(${-arrow.angle})`;
    parts.push(
      createSvg("line", { x1: center, y1: center, x2: center + x, y2: center - y, stroke: color, "stroke-width": 3 }),
      createSvg("path", { d: "M0 0 L-13 -6 L-13 6 Z", fill: color, transform: turn }),
      // a finger on the tip drags it; elsewhere it scrolls the page
      createSvg("circle", { cx: center + x, cy: center - y, r: REACH * UNIT, fill: "transparent", style: "cursor: grab; touch-action: none" }),
      createSvg("text", { x: center + x * 1.08 + 8, y: center - y * 1.08 - 8, "font-weight": 700 }, arrow.name),
    );
  });
  return parts;
}
