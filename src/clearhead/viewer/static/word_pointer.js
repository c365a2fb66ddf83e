// Pointer and keys of the words: a word at the pointer or with the focus isolates its lines, a line opens its head.

import { pointAtToken } from "clearhead/cursor.js";
import { element } from "clearhead/dom.js";
import { buttons, drawing, heightOf, indexOf, isolate, LINE_WIDTH, openLine, picture, pointAtLine, wordAt } from "clearhead/word_lines.js";

/** @typedef {import("clearhead/word_lines.js").Line} Line */

const NEAR = 6; // pixels between the pointer and a line

/** Return the line nearest to the pointer. A line's height is a smooth step from its query to its key. @param {MouseEvent} event */
function lineAt({ clientX, clientY }) {
  const box = picture.getBoundingClientRect();
  const across = (clientX - box.left) / box.width;
  const down = clientY - box.top;
  const share = 3 * across ** 2 - 2 * across ** 3;
  let [best, least] = [/** @type {Line | undefined} */ (undefined), NEAR];
  for (const line of drawing.lines) {
    if (drawing.isolated && line[drawing.isolated.side] !== drawing.isolated.position) continue;
    const height = (1 - share) * heightOf("query", line.query) + share * heightOf("key", line.key);
    const distance = Math.abs(height - down) - (LINE_WIDTH * line.weight) / 2;
    if (distance < least) [best, least] = [line, distance];
  }
  return best;
}

/** Isolate the focused word when the pointer leaves. */
function leave() {
  const { activeElement } = document;
  isolate(activeElement?.matches(":focus-visible") ? wordAt(activeElement) : undefined);
}

/** @param {KeyboardEvent} event */
function pressed(event) {
  const word = wordAt(event.target);
  if (!word || event.ctrlKey || event.metaKey || event.altKey) return;
  const { side, position } = word;
  const other = side === "query" ? "key" : "query";
  const last = buttons[side].length - 1;
  /** @type {Record<string, () => any>} */
  const targets = {
    ArrowUp: () => buttons[side][Math.max(0, position - 1)],
    ArrowDown: () => buttons[side][Math.min(last, position + 1)],
    Home: () => buttons[side][0],
    End: () => buttons[side][last],
    ArrowLeft: () => (side === "key" ? buttons[other][Math.min(position, buttons[other].length - 1)] : undefined),
    ArrowRight: () => (side === "query" ? buttons[other][Math.min(position, buttons[other].length - 1)] : undefined),
  };
  const target = targets[event.key]?.();
  if (!target) return;
  event.preventDefault();
  target.focus();
}

const box = element("lines");
box.addEventListener("pointerover", (/** @type {PointerEvent} */ event) => {
  const word = wordAt(event.target);
  if (word) isolate(word);
  else if (event.target !== picture && event.pointerType === "mouse") leave();
});
box.addEventListener("pointerleave", leave);
box.addEventListener("focusin", (/** @type {FocusEvent} */ event) => isolate(wordAt(event.target)));
box.addEventListener("focusout", () => isolate(undefined));
box.addEventListener("keydown", pressed);
box.addEventListener("click", (/** @type {MouseEvent} */ event) => {
  const word = wordAt(event.target);
  if (word) return pointAtToken(word.side, indexOf(word.side, word.position));
  const line = picture.contains(/** @type {Node} */ (event.target)) ? lineAt(event) : undefined;
  if (line) openLine(line);
});
picture.addEventListener("pointerenter", leave);
picture.addEventListener("pointermove", (event) => {
  const line = lineAt(event);
  picture.style.cursor = line ? "pointer" : "";
  if (line !== drawing.pointed) pointAtLine(line);
});
picture.addEventListener("pointerleave", () => pointAtLine(undefined));
