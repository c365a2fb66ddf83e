// Texts of numbers, equal to those of explain/render/wording.py.

const SCIENTIFIC_FROM = 1e7; // numbers from here on are written with an exponent
const NUMBER = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i;
const THOUSANDS = /^[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?$/; // 0,500 has a decimal comma
export const MINUS = "−";

/** Return the number that a text states: 1,000 is one thousand, and 0,5 one half. NaN if it states none. @param {string} text */
export function parseNumber(text) {
  const plain = text.trim().replaceAll(MINUS, "-");
  const pointed = THOUSANDS.test(plain) ? plain.replaceAll(",", "") : plain.replace(",", ".");
  return NUMBER.test(pointed) ? Number(pointed) : NaN;
}

/**
 * Return a number with an exponent of at least two digits, as Python writes it.
 * @param {number} value @param {number} digits
 */
const exponential = (value, digits) => value.toExponential(digits).replace(/e([+-])(\d)$/, "e$10$2");

/**
 * Round half to even, as Python does; toFixed rounds half away from 0.
 * @param {number} value @param {number} digits
 */
function fixed(value, digits) {
  const text = value.toFixed(digits);
  // a tie is a number whose digits end with a single 5 after the last shown one
  const tail = value.toFixed(digits + 40).slice(-40);
  const last = Number(text.at(-1));
  if (!/^50+$/.test(tail) || last % 2 === 0) return text;
  const towardsZero = value.toFixed(digits + 1).slice(0, -1);
  return towardsZero.endsWith(".") ? towardsZero.slice(0, -1) : towardsZero;
}

/** Return a number with a hyphen as its minus sign. @param {number} value @param {number} digits @param {"f" | "e"} style */
export function formatNumber(value, digits, style = "f") {
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "-∞";
  const scientific = style === "e" || Math.abs(value) >= SCIENTIFIC_FROM;
  const text = scientific ? exponential(value, digits) : fixed(value, digits);
  return Number(text) === 0 ? text.replace(/^-/, "") : text; // negative zero has no minus sign
}

/** Return at most six significant digits, as Python's format "g". @param {number} value */
export function shortNumber(value) {
  const [mantissa, exponent] = value.toExponential(5).split("e");
  if (Number(exponent) >= -4 && Number(exponent) < 6) return String(Number(value.toPrecision(6)));
  return `${Number(mantissa)}e${exponent}`.replace(/e([+-])(\d)$/, "e$10$2");
}

/** Format of the numbers of one matrix: as few digits after the point as possible, at most `digits`. */
export class NumberFormat {
  /** @param {number[][]} values @param {number} digits */
  constructor(values, digits = 3) {
    const finite = values.flat().filter(Number.isFinite);
    const largest = Math.max(0, ...finite.map(Math.abs));
    this.digits = digits;
    this.style = /** @type {"f" | "e"} */ (
      largest >= SCIENTIFIC_FROM || (largest > 0 && largest < 0.5 * 10 ** -digits) ? "e" : "f"
    );
    if (this.style === "e") return;
    const allowed = 1e-12 * Math.max(1, largest);
    for (let needed = 0; needed < digits; needed++) {
      if (finite.every((value) => Math.abs(Number(value.toFixed(needed)) - value) <= allowed)) {
        this.digits = needed;
        return;
      }
    }
  }

  /** @param {number} value @returns {string} with a hyphen as its minus sign */
  plain(value) {
    return formatNumber(value, this.digits, this.style);
  }

  /** @param {number} value @returns {string} with a typographic minus sign */
  signed(value) {
    const text = this.plain(value);
    return value < 0 ? text.replace("-", MINUS) : text;
  }

  /** Return a factor or a summand: a negative one is in brackets. @param {number} value @returns {string} */
  bracketed(value) {
    const text = this.signed(value);
    return text.startsWith(MINUS) ? `(${text})` : text;
  }

  /** Return whether a number is shown without rounding. @param {number} value @returns {boolean} */
  isExact(value) {
    if (!Number.isFinite(value)) return true;
    return Math.abs(Number(this.plain(value)) - value) <= 1e-12 * Math.max(1, Math.abs(value));
  }
}
