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

/** @param {string} text token, isolated from the direction of the text around it */
export const literal = (text) => make("bdi", { textContent: text });

/** @param {string} name custom property; return its color in the current theme */
export function themeColor(name) {
  const probe = make("span", { style: `color: var(--${name})` });
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
