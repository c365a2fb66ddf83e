// Numbers and names as text.

/**
 * Format a number with significant digits.
 * @param {number | null | undefined} value
 * @param {number} [digits]
 */
export function significant(value, digits = 4) {
  if (value === null || value === undefined) return "";
  if (value === -Infinity) return "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size < 1e-3 || size >= 1e5 ? value.toExponential(digits - 1) : value.toPrecision(digits);
  return text.replaceAll("-", "−");
}

/**
 * Format a number with a fixed number of decimals.
 * @param {number} value
 * @param {number} [digits]
 */
export const fixed = (value, digits = 2) => value.toFixed(digits).replace(/^-(?=0\.0*$)/, "").replace("-", "−");

/** Format a share of 1 as a percentage. @param {number} share */
export function percent(share) {
  const text = share < 0.001 ? (share > 0 ? "< 0.1" : "0") : share < 0.0995 ? (100 * share).toFixed(1) : (100 * share).toFixed(0);
  return `${text}\u00a0%`;
}

/** @param {number} value @param {number} low @param {number} high */
export const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

/** @param {number} start @param {number} end */
export const rangeText = (start, end) => (end - start === 1 ? `${start}` : `${start} to ${end - 1}`);

/** @param {string} stack */
export const stackTitle = (stack) => ({ encoder: "Encoder", decoder: "Decoder", cross: "Cross-attention" })[stack] ?? stack;

/** @param {{ stack: string, layer: number, head: number }} head */
export const headId = ({ stack, layer, head }) => `${stack}.${layer}.${head}`;

/** @param {{ stack: string, layer: number, head: number }} head */
export const headTitle = ({ stack, layer, head }) => `${stackTitle(stack)}, layer ${layer}, head ${head}`;

/** Return the short name of a head, with its stack. @param {{ stack: string, layer: number, head: number }} head */
export const headName = ({ stack, layer, head }) => `${stack} ${layer}.${head}`;

/** @type {Record<string, string>} */
const UNITS = { entropy: "nats", distance: "tokens" }; // of statistics; all others are shares or have none

/**
 * Format a statistic of a head.
 * @param {string} statistic
 * @param {number | null | undefined} value
 * @param {boolean} [hasUnit]
 */
export function statisticText(statistic, value, hasUnit = false) {
  if (value === null || value === undefined) return "";
  const text = statistic === "offset" ? `${value > 0 ? "+" : ""}${value}`.replace("-", "−") : fixed(value, Math.abs(value) < 100 ? 2 : 0);
  return hasUnit && UNITS[statistic] ? `${text} ${UNITS[statistic]}` : text;
}

/** Format a weight of a list with at most three significant digits. @param {number} weight */
export const weightText = (weight) => significant(weight, weight < 1e-3 ? 2 : 3);
