// Regions with many items and one tab stop: arrow keys move between the items (a roving tabindex).

/** @typedef {{ update: (change: () => void) => void }} TabStop */

/**
 * Make the items of a region one tab stop. Left and right follow the order of the items, up and down their positions on
 * screen; Home and End go to the ends of a row, with Ctrl to the first and last item.
 * @param {HTMLElement} region
 * @param {string} selector of the items
 * @returns {TabStop} `update` runs a change of the items and keeps the focus
 */
export function oneTabStop(region, selector) {
  /** @type {HTMLElement | undefined} */
  let current;
  const items = () => /** @type {HTMLElement[]} */ ([...region.querySelectorAll(selector)]);

  /** @param {HTMLElement | undefined} item */
  function choose(item) {
    if (current) current.tabIndex = -1;
    current = item;
    if (current) current.tabIndex = 0;
  }

  region.addEventListener("focusin", ({ target }) => {
    const item = /** @type {HTMLElement} */ (target);
    if (item.matches(selector)) choose(item);
  });
  region.addEventListener("keydown", (event) => {
    if (event.altKey || event.metaKey || !(/** @type {HTMLElement} */ (event.target).matches(selector))) return;
    const target = neighbor(items(), /** @type {HTMLElement} */ (event.target), event.key, event.ctrlKey);
    if (!target) return;
    event.preventDefault();
    target.focus();
  });

  return {
    update(change) {
      const before = items();
      const focused = region.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement) : undefined;
      change();
      const after = items();
      for (const item of after) item.tabIndex = -1;
      const same = (/** @type {HTMLElement | undefined} */ item) => (item && after.includes(item) ? item : after[item ? before.indexOf(item) : -1]);
      const marked = focused ? undefined : after.find((item) => item.hasAttribute("aria-current"));
      choose(marked ?? same(current) ?? after[0]);
      if (focused && document.activeElement !== focused) same(focused)?.focus({ preventScroll: true });
    },
  };
}

/** @param {HTMLElement[]} items @param {HTMLElement} item @param {string} key @param {boolean} isFar @returns {HTMLElement | undefined} */
function neighbor(items, item, key, isFar) {
  const index = items.indexOf(item);
  if (key === "ArrowRight") return items[index + 1];
  if (key === "ArrowLeft") return items[index - 1];
  if (key === "Home" || key === "End") {
    const row = isFar ? items : items.filter((other) => isInRow(other.getBoundingClientRect(), item.getBoundingClientRect()));
    return row.at(key === "Home" ? 0 : -1);
  }
  if (key === "ArrowDown" || key === "ArrowUp") return nearest(items, item.getBoundingClientRect(), key === "ArrowDown" ? 1 : -1);
  return undefined;
}

/** @param {DOMRect} one @param {DOMRect} other */
const isInRow = (one, other) => one.top < other.top + other.height / 2 && one.bottom > other.top + other.height / 2;

/** Return the item of the next row below (1) or above (-1) that is nearest. @param {HTMLElement[]} items @param {DOMRect} box @param {number} direction */
function nearest(items, box, direction) {
  const middle = box.left + box.width / 2;
  let best;
  let least = [Infinity, Infinity];
  for (const item of items) {
    const other = item.getBoundingClientRect();
    const down = direction * (other.top + other.height / 2 - box.top - box.height / 2);
    if (down < box.height / 2 || isInRow(other, box)) continue;
    const across = Math.abs(other.left + other.width / 2 - middle);
    const isNearer = down < least[0] - box.height / 2 || (down < least[0] + box.height / 2 && across < least[1]);
    if (isNearer) [best, least] = [item, [down, across]];
  }
  return best;
}
