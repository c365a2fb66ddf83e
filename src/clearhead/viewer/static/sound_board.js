// A sound as a waveform with seconds: weights of its frames stand above it, and a line marks one frame.

import { draw, make } from "clearhead/dom.js";
import { clamp, fixed } from "clearhead/format.js";

const [WIDTH, TOP, MIDDLE, BOTTOM] = [1000, 62, 92, 28]; // of the drawing: height of the weights, axis and height of the waveform
const STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 300, 1800]; // seconds between two ticks

/**
 * Create a board. `events.point` receives the token at the pointer or undefined, `events.choose` a chosen token.
 * @param {FramesRegion} region
 * @param {SoundPayload | undefined} sound
 * @param {BoardEvents} events
 * @returns {Board}
 */
export function soundBoard({ start, count, seconds }, sound, events) {
  const duration = count * seconds;
  const weights = draw("path", { class: "weights" });
  const spot = draw("line", { class: "spot", y1: TOP, y2: 124, visibility: "hidden" });
  const spoken = draw("line", { class: "spoken", y1: 0, y2: 124, visibility: "hidden" });
  const picture = draw("svg", { viewBox: `0 0 ${WIDTH} 124`, preserveAspectRatio: "none", "aria-hidden": "true" }, weights, wave(sound, duration), spoken, spot);
  const board = make("div", { className: "sound", tabIndex: 0 }, picture, ...ticks(duration));
  board.setAttribute("role", "application");
  board.setAttribute("aria-roledescription", "sound");
  let marked = 0; // frame at the line

  const frameAt = (/** @type {PointerEvent} */ { clientX }) => {
    const { left, width } = board.getBoundingClientRect();
    return clamp(Math.floor(((clientX - left) / width) * count), 0, count - 1);
  };
  board.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => events.point(start + frameAt(event)));
  board.addEventListener("pointerleave", () => events.point(undefined));
  board.addEventListener("click", (/** @type {PointerEvent} */ event) => events.choose(start + frameAt(event)));
  board.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = event.shiftKey ? 10 : 1;
    const moved = { ArrowLeft: marked - step, ArrowRight: marked + step, Home: 0, End: count - 1 }[event.key];
    if (moved === undefined) return;
    event.preventDefault();
    mark(clamp(moved, 0, count - 1)); // now, because keys may repeat before the answer
    events.choose(start + marked);
  });

  const lineAt = (/** @type {SVGElement} */ line, /** @type {number | undefined} */ time) => {
    line.setAttribute("visibility", time === undefined ? "hidden" : "visible");
    for (const name of time === undefined ? [] : ["x1", "x2"]) line.setAttribute(name, String((WIDTH * /** @type {number} */ (time)) / duration));
  };
  function mark(/** @type {number | undefined} */ frame) {
    if (frame !== undefined) marked = frame;
    lineAt(spot, frame === undefined ? undefined : (frame + 0.5) * seconds);
  }

  return {
    element: board,
    has: (position) => position >= start && position < start + count,
    name: (position) => `${fixed((position - start) * seconds)} s`,
    positions: Array.from({ length: count }, (_, frame) => start + frame),
    mark: (position) => mark(position === undefined ? undefined : position - start),
    paint: (all, most, time) => {
      const x = (/** @type {number} */ frame) => ((WIDTH * frame) / count).toFixed(1);
      const bars = Array.from({ length: count }, (_, frame) => {
        const y = (TOP * (1 - (most > 0 ? all[start + frame] / most : 0))).toFixed(1);
        return `L${x(frame)} ${y} L${x(frame + 1)} ${y}`;
      });
      weights.setAttribute("d", `M0 ${TOP} ${bars.join(" ")} L${WIDTH} ${TOP} Z`);
      lineAt(spoken, time);
    },
  };
}

/** @param {SoundPayload | undefined} sound @param {number} duration */
function wave(sound, duration) {
  if (!sound) return draw("path", {});
  const { low, high } = sound;
  const x = (/** @type {number} */ bin) => ((WIDTH * (bin + 0.5) * sound.seconds) / low.length / duration).toFixed(1);
  const y = (/** @type {number} */ value) => (MIDDLE - BOTTOM * value).toFixed(1);
  const above = high.map((value, bin) => `L${x(bin)} ${y(value)}`);
  const below = low.map((value, bin) => `L${x(bin)} ${y(value)}`).reverse();
  return draw("path", { class: "wave", d: `M0 ${MIDDLE} ${above.join(" ")} ${below.join(" ")} Z` });
}

/** @param {number} duration */
function ticks(duration) {
  const step = STEPS.find((candidate) => duration / candidate <= 6) ?? duration;
  return Array.from({ length: Math.floor(duration / step + 1e-9) + 1 }, (_, index) => {
    const tick = make("span", { className: "tick", textContent: `${Number((index * step).toFixed(1))} s` });
    const share = (100 * index * step) / duration;
    const shift = index ? (share > 95 ? 100 : 50) : 0; // centered, but not beyond the edges
    Object.assign(tick.style, { left: `${share}%`, transform: `translateX(-${shift}%)` });
    return tick;
  });
}
