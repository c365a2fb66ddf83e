// Elements of HTML, SVG and MathML. Strings become text nodes, never markup.

const NAMESPACES = { html: "http://www.w3.org/1999/xhtml", svg: "http://www.w3.org/2000/svg", math: "http://www.w3.org/1998/Math/MathML" };

/** @typedef {Record<string, string | number | boolean | undefined>} Attributes */
/** @typedef {Node | string | undefined | false} Child */

/**
 * Return a function that creates elements. Attributes that are false or undefined are left out, true is written as "".
 * @param {keyof typeof NAMESPACES} kind
 */
const creator = (kind) =>
  /** @param {string} name @param {Attributes} [attributes] @param {...Child} children @returns {any} */
  (name, attributes = {}, ...children) => {
    const made = document.createElementNS(NAMESPACES[kind], name);
    for (const [key, value] of Object.entries(attributes)) {
      if (value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : String(value));
    }
    made.append(.../** @type {(Node | string)[]} */ (children.filter((child) => child !== undefined && child !== false)));
    return made;
  };

export const create = creator("html");
export const createSvg = creator("svg");
export const createMath = creator("math");

/**
 * Create a button.
 * @param {string} text
 * @param {() => void} act
 * @param {Attributes} [attributes]
 * @returns {HTMLButtonElement}
 */
export function createButton(text, act, attributes = {}) {
  const button = create("button", { type: "button", ...attributes }, text);
  button.addEventListener("click", act);
  return button;
}

/** Return a token on one line with invisible characters escaped, as Python's visible_text; blank text is quoted. @param {string} token */
export function visibleToken(token) {
  const shown = token.replace(/[\p{C}\p{Z}]/gu, (sign) => (sign === " " ? sign : escaped(sign)));
  return shown.trim() ? shown : `"${shown}"`;
}

/** @param {string} sign */
function escaped(sign) {
  const known = { "\n": "\\n", "\t": "\\t", "\r": "\\r" }[sign];
  if (known) return known;
  const code = (sign.codePointAt(0) ?? 0).toString(16);
  return code.length <= 2 ? `\\x${code.padStart(2, "0")}` : code.length <= 4 ? `\\u${code.padStart(4, "0")}` : `\\U${code.padStart(8, "0")}`;
}
