// Creation of elements. Strings become text nodes, never markup.

/**
 * @param {string} id
 * @returns {any} the element, whose type depends on the template
 */
export const element = (id) => document.getElementById(id);

/**
 * Create an HTML element; undefined children are skipped.
 * @param {string} name
 * @param {Record<string, any>} [properties]
 * @param {...(Node | string | undefined)} children
 * @returns {any}
 */
export function make(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children.filter((child) => child !== undefined));
  return made;
}

/**
 * Create an SVG element.
 * @param {string} name
 * @param {Record<string, string | number>} attributes
 * @param {...(Node | string)} children
 * @returns {SVGElement}
 */
export function draw(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  made.append(...children);
  return made;
}

/**
 * Create a token, isolated from the direction of the text around it.
 * @param {string} text
 * @param {string} [language] language of the text, if it is known
 */
export const literal = (text, language = "") => make("bdi", { textContent: text, ...(language ? { lang: language } : {}) });

/**
 * Create the label of a query: the token that its row writes, with the token that it reads in a quieter color.
 * @param {string} read
 * @param {string} [written] empty if it is unknown
 * @param {string} [language]
 */
export function rowLabel(read, written = "", language = "") {
  if (!written) return make("span", {}, literal(read, language));
  return make("span", {}, make("span", { className: "read" }, literal(read, language)), " → ", literal(written, language));
}

/**
 * Return the color of a custom property.
 * @param {string} name
 * @param {string} [scheme] "light" or "dark" (default: the current theme)
 */
export function themeColor(name, scheme) {
  const probe = make("span", { style: `color: var(--${name})${scheme ? `; color-scheme: ${scheme}` : ""}` });
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

/** Scroll to a region if less than 80 pixels of it are on the screen. @param {string} id */
export function reveal(id) {
  const { top, bottom } = element(id).getBoundingClientRect();
  if (bottom < 80 || top > innerHeight - 80) element(id).scrollIntoView();
}
