// Formulas as MathML: "S₁ = Q₁ K₁ᵀ / √2" becomes a fraction with a root below it.

import { create, createMath } from "clearhead/elements.js";

// a symbol (W_Q₁, Kᵀ), a root, a part of a matrix in brackets, a number, a word, or one sign
const TOKEN = /([A-Zij])(?:_([A-Z]))?([₀-₉ᵢⱼ]*)(ᵀ?)(?![A-Za-z])|√([\d.]+)|\[(columns?[^\]]*|tokens)\]|(\d[\d.]*(?:e[+−-]?\d+)?)|([A-Za-z]+(?: [A-Za-z]+)*)|(\S)/gu;
const SUBSCRIPTS = "₀₁₂₃₄₅₆₇₈₉";
/** @param {string} text */
const plain = (text) => [...text].map((sign) => (sign === "ᵢ" ? "i" : sign === "ⱼ" ? "j" : String(SUBSCRIPTS.indexOf(sign)))).join("");
/** @param {string} text */
const letters = (text) => createMath("mi", text.length === 1 ? {} : { mathvariant: "normal" }, text);
/** @param {string} text */
const index = (text) => (/^\d+$/.test(text) ? createMath("mn", {}, text) : letters(text));

/** Return a symbol with its subscripts, such as W with the subscript Q₁. @param {RegExpMatchArray} match */
function symbol([, name, kind, head, transposed]) {
  let made = letters(name);
  const subscript = head ? index(plain(head)) : undefined;
  if (kind) made = createMath("msub", {}, made, subscript ? createMath("msub", {}, letters(kind), subscript) : letters(kind));
  else if (subscript) made = createMath("msub", {}, made, subscript);
  return transposed ? createMath("msup", {}, made, createMath("mo", {}, "⊤")) : made;
}

/**
 * Return the MathML of a formula.
 * @param {string} text
 * @param {boolean} [isBlock]
 */
export function mathOf(text, isBlock = false) {
  /** @type {Element[][]} */
  const rows = [[]]; // one for each open bracket
  const starts = [0]; // start of the term that a fraction divides
  let isDivided = false;
  /** @param {Element} item */
  const add = (item) => {
    const [row, start] = [rows[rows.length - 1], starts[starts.length - 1]];
    if (isDivided) {
      row.push(createMath("mfrac", {}, createMath("mrow", {}, ...row.splice(start)), item));
      isDivided = false;
    } else row.push(item);
  };
  for (const match of text.matchAll(TOKEN)) {
    const [whole, name, , , , root, part, digits, words] = match;
    const row = rows[rows.length - 1];
    if (name) add(symbol(match));
    else if (root) add(createMath("msqrt", {}, createMath("mn", {}, root)));
    else if (part === "tokens") add(createMath("mtext", {}, whole));
    else if (part) row.push(createMath("msub", {}, /** @type {Element} */ (row.pop()), createMath("mtext", {}, part)));
    else if (digits) add(createMath("mn", {}, digits));
    else if (words) add(createMath("mtext", {}, words.includes(" ") ? `${words} ` : words));
    else if (whole === "/" && text.slice(match.index).startsWith("/ √")) isDivided = true;
    else if (whole === "(" || whole === "⌈") {
      rows.push([createMath("mo", {}, whole)]);
      starts.push(1);
    } else if ((whole === ")" || whole === "⌉") && rows.length > 1) {
      const inner = /** @type {Element[]} */ (rows.pop());
      starts.pop();
      add(createMath("mrow", {}, ...inner, createMath("mo", {}, whole)));
    } else {
      row.push(whole === "," ? createMath("mo", { separator: "true" }, whole) : createMath("mo", {}, whole === "·" ? "⋅" : whole));
      if (text.startsWith(",  ", match.index)) row.push(createMath("mspace", { width: "1em" })); // between formulas
      if ("=+,;".includes(whole)) starts[starts.length - 1] = row.length;
    }
  }
  return createMath("math", isBlock ? { display: "block" } : {}, createMath("mrow", {}, ...rows.flat()));
}

/** Return a formula as a block, with its text for screen readers. @param {string} text @returns {HTMLElement} */
export const formulaBlock = (text) => create("div", { class: "formula", role: "math", "aria-label": text }, mathOf(text, true));
