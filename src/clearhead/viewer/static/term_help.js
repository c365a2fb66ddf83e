// Tooltips of terms: the first use of each term in a region is underlined, and explained on hover, focus and tap.

import { make } from "clearhead/dom.js";
import { clamp } from "clearhead/format.js";
import { REGIONS, openGlossary } from "clearhead/glossary.js";
import { ANY_TERM, termNamed, termOfLabel } from "clearhead/terms.js";

// texts of the page itself; never tokens, which are in bdi elements, in buttons of words, or in table cells
const TEXTS = "h3, legend, label, p.quiet, .quiet:not(p), .side, thead th, .legend, summary, .term-text";
const TOKENS = "bdi, svg, select, textarea, .tok, .word, .thumb, [lang]:not(html)";
const [SHOW_MS, HIDE_MS, MARK_MS] = [300, 250, 120];

const tip = make("div", { id: "term-help", className: "term-help", popover: "manual" });
/** @type {HTMLElement | undefined} */
let shownFor;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;

// -- marks ---------------------------------------------------------------------------------------------------------------------

function markTerms() {
  for (const region of document.querySelectorAll(REGIONS)) {
    const elsewhere = [...region.querySelectorAll("[data-term]")].filter((mark) => !mark.closest(TEXTS));
    /** @type {Set<string>} */
    const seen = new Set(elsewhere.map((mark) => /** @type {HTMLElement} */ (mark).dataset.term ?? ""));
    /** @type {Set<Element>} */
    const kept = new Set();
    for (const box of region.querySelectorAll(TEXTS)) markTexts(box, seen, kept);
  }
}

/**
 * @param {Element} box
 * @param {Set<string>} seen names of the terms in the texts before the box
 * @param {Set<Element>} kept their marks, because boxes may contain each other
 */
function markTexts(box, seen, kept) {
  const walker = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
  /** @type {Text[]} */
  const nodes = [];
  while (walker.nextNode()) nodes.push(/** @type {Text} */ (walker.currentNode));
  for (const node of nodes) {
    const mark = /** @type {HTMLElement | null | undefined} */ (node.parentElement?.closest("[data-term]"));
    if (mark) {
      keepFirst(mark, seen, kept);
      continue;
    }
    if (!node.data.trim() || node.parentElement?.closest(TOKENS)) continue;
    const parts = node.data.split(/( · )/).flatMap((part) => partsOf(part, seen));
    for (const part of parts) if (part instanceof Element) kept.add(part);
    if (parts.every((part) => typeof part === "string")) continue;
    // a flex container would drop the spaces between its items
    const isFlex = getComputedStyle(/** @type {Element} */ (node.parentElement)).display.includes("flex");
    node.replaceWith(...(isFlex ? [make("span", {}, ...parts)] : parts));
  }
}

/** Remove a mark if a text before it has the term by now. @param {HTMLElement} mark @param {Set<string>} seen @param {Set<Element>} kept */
function keepFirst(mark, seen, kept) {
  const name = mark.dataset.term ?? "";
  if (kept.has(mark)) return;
  if (!seen.has(name)) {
    seen.add(name);
    kept.add(mark);
    return;
  }
  if (mark === shownFor) hideHelp();
  mark.replaceWith(...mark.childNodes);
}

/** Return a text with the terms that are not in `seen` as elements. @param {string} text @param {Set<string>} seen @returns {(string | Node)[]} */
function partsOf(text, seen) {
  const mark = (/** @type {string} */ name, /** @type {string} */ word) => {
    seen.add(name);
    const made = make("span", { className: "term", textContent: word });
    made.dataset.term = name;
    return made;
  };
  const label = termOfLabel(text);
  if (label && !seen.has(label.name)) return [mark(label.name, text)];
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(ANY_TERM)) {
    const term = termNamed(match[0]);
    if (!term || seen.has(term.name)) continue;
    parts.push(text.slice(end, match.index), mark(term.name, match[0]));
    end = match.index + match[0].length;
  }
  return [...parts, text.slice(end)].filter((part) => part !== "");
}

/** @type {ReturnType<typeof setTimeout> | undefined} */
let marking;
const markSoon = () => (marking ??= setTimeout(() => ((marking = undefined), markTerms()), MARK_MS));

// -- the tooltip ---------------------------------------------------------------------------------------------------------------

/** Return the explained element at an event's target, and its term. @param {EventTarget | null} target */
function termAt(target) {
  if (!(target instanceof Element)) return undefined;
  const box = /** @type {HTMLElement | null} */ (target.closest("[data-term], .chip"));
  const term = box && (box.dataset.term ? termNamed(box.dataset.term) : termOfLabel(box.title || box.textContent || ""));
  return term ? { box, term } : undefined;
}

/** @param {HTMLElement} box @param {import("clearhead/terms.js").Term} term @param {Element} [described] the focused element */
function showHelp(box, term, described) {
  clearTimeout(timer);
  hideHelp();
  const more = make("button", { type: "button", className: "place", textContent: "All words", tabIndex: -1 });
  more.addEventListener("click", () => {
    hideHelp();
    openGlossary(box.closest(REGIONS), term.name);
  });
  tip.replaceChildren(make("strong", { textContent: term.name }), ` ${term.text} `, more);
  tip.showPopover();
  shownFor = box;
  moveToTerm();
  described?.setAttribute("aria-describedby", tip.id);
}

/** Move the tooltip below its term, or above it at the lower edge of the window. */
function moveToTerm() {
  if (!shownFor) return;
  const [target, size] = [shownFor.getBoundingClientRect(), tip.getBoundingClientRect()];
  const below = target.bottom + 6;
  const top = below + size.height > innerHeight ? target.top - size.height - 6 : below;
  Object.assign(tip.style, { left: `${clamp(target.left, 8, Math.max(8, innerWidth - size.width - 8))}px`, top: `${Math.max(8, top)}px` });
}

function hideHelp() {
  clearTimeout(timer);
  if (!shownFor) return;
  shownFor = undefined;
  tip.hidePopover();
  document.querySelector(`[aria-describedby=${tip.id}]`)?.removeAttribute("aria-describedby");
}

/** @param {PointerEvent} event */
function hovered({ target, pointerType }) {
  if (pointerType === "touch" || (target instanceof Node && tip.contains(target))) return clearTimeout(timer);
  const at = termAt(target);
  if (at?.box && at.box === shownFor) return clearTimeout(timer);
  clearTimeout(timer);
  if (at?.box) timer = setTimeout(() => showHelp(/** @type {HTMLElement} */ (at.box), at.term), SHOW_MS);
  else if (shownFor) timer = setTimeout(hideHelp, HIDE_MS);
}

/** Explain the term of a control that has the keyboard focus: inside it, in its label, or in the legend of its group. @param {FocusEvent} event */
function focused({ target }) {
  if (!(target instanceof HTMLElement) || !target.matches(":focus-visible") || target.matches(".thumb, .word")) return;
  const labels = target instanceof HTMLInputElement || target instanceof HTMLSelectElement ? [...(target.labels ?? [])] : [];
  const boxes = [target, ...labels, target.closest("fieldset")?.querySelector("legend")];
  const box = boxes.map((part) => (part?.matches("[data-term]") ? part : part?.querySelector("[data-term]"))).find(Boolean);
  const at = termAt(box ?? null);
  if (at?.box && target.matches("button, input, select, summary, a")) showHelp(at.box, at.term, target);
}

document.body.append(tip);
document.addEventListener("pointerover", hovered);
document.addEventListener("focusin", focused);
document.addEventListener("focusout", hideHelp);
document.addEventListener("click", ({ target, detail }) => {
  if (!detail) return; // from a key, such as an arrow in a group of radio buttons
  const at = termAt(target);
  if (at?.box && !at.box.closest("button, label, a, summary")) showHelp(at.box, at.term);
  else if (!(target instanceof Node && tip.contains(target))) hideHelp();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideHelp();
});
document.addEventListener("scroll", moveToTerm, true);
markTerms();
// tokens and thumbnails contain no terms, and change often
const isInToken = (/** @type {MutationRecord} */ { target }) => Boolean((target instanceof Element ? target : target.parentElement)?.closest(TOKENS));
new MutationObserver((changes) => changes.every(isInToken) || markSoon()).observe(document.body, { childList: true, subtree: true, characterData: true });
