// The words: the lines of a layer's heads, the choice of stack, layer and heads, and labels for screen readers.

import "clearhead/word_caption.js";
import "clearhead/word_pointer.js";
import { element, make } from "clearhead/dom.js";
import { headId, percent, stackTitle } from "clearhead/format.js";
import { thumbnailOf } from "clearhead/grid.js";
import { colorSlots, headCount, MAX_HEADS_ON, toggleHead, turnOn, turnOnAll } from "clearhead/head_toggles.js";
import { isWeighted } from "clearhead/heatmap.js";
import { on, openHead, stackShown, state } from "clearhead/state.js";
import { drawing, drawLines, drawWords, showSelection } from "clearhead/word_lines.js";

// -- stack and layer -----------------------------------------------------------------------------------------------------------

function showChoices() {
  if (!state.head) return;
  const { stack, layer } = state.head;
  fillSelect(element("word-stack"), state.model.stacks.map(({ name }) => [name, stackTitle(name)]), stack);
  element("word-stack").hidden = state.model.stacks.length < 2;
  const layers = stackShown().heads.length;
  fillSelect(element("word-layer"), Array.from({ length: layers }, (_, index) => [String(index), `layer ${index}`]), String(layer));
  element("layer-before").disabled = layer === 0;
  element("layer-after").disabled = layer === layers - 1;
  const isCross = stack === "cross";
  element("query-side").textContent = isCross ? "target (queries)" : "queries";
  element("key-side").textContent = isCross ? "source (keys)" : "keys";
  showChips();
}

/** @param {any} select @param {string[][]} options value and text of each option @param {string} value */
function fillSelect(select, options, value) {
  const listed = [...select.options].map((option) => option.value);
  if (String(listed) !== String(options.map(([name]) => name))) {
    select.replaceChildren(...options.map(([name, text]) => make("option", { value: name, textContent: text })));
  }
  select.value = value;
}

/** Open a head of another layer, with the same index if the layer has it. @param {string} stack @param {number} layer */
function openLayer(stack, layer) {
  const heads = state.model.stacks.find(({ name }) => name === stack)?.heads ?? [];
  const nearest = Math.max(0, Math.min(layer, heads.length - 1));
  openHead(headId({ stack, layer: nearest, head: Math.min(state.head?.head ?? 0, heads[nearest] - 1) }));
}

// -- heads ---------------------------------------------------------------------------------------------------------------------

function showChips() {
  const count = headCount();
  const listed = element("word-heads").children;
  if (listed.length !== count) element("word-heads").replaceChildren(...Array.from({ length: count }, (_, head) => chipOf(head)));
  const slots = colorSlots();
  [...listed].forEach((/** @type {any} */ chip, head) => {
    const id = headId({ stack: state.head?.stack ?? "", layer: state.head?.layer ?? 0, head });
    const label = thumbnailOf(id)?.labels[0] ?? "";
    chip.className = slots.has(head) ? `head-chip slot-${slots.get(head)}` : "head-chip";
    chip.setAttribute("aria-pressed", String(slots.has(head)));
    chip.setAttribute("aria-label", ["head", head, label].filter((part) => part !== "").join(" "));
    chip.toggleAttribute("data-selected", head === state.head?.head);
    chip.lastChild.textContent = label.replace(/ token$/, "");
  });
  element("heads-on").textContent = count > MAX_HEADS_ON ? `at most ${MAX_HEADS_ON} of ${count} heads at once` : "";
}

/** @param {number} head */
function chipOf(head) {
  const chip = make("button", { type: "button" }, make("span", { className: "dot" }), String(head), make("span", { className: "label" }));
  chip.addEventListener("click", () => toggleHead(head));
  return chip;
}

// -- lines ---------------------------------------------------------------------------------------------------------------------

/** Describe each query and its strongest weight to screen readers. */
function describeWords() {
  const { words, lines } = drawing;
  if (!words) return;
  const best = new Map(lines.map((line) => [line.query, line])); // lines are sorted, strongest last
  document.querySelectorAll("#lines .queries .word").forEach((button, position) => {
    const line = best.get(position);
    const written = words.written?.[position];
    const name = written ? `writes ${written} after ${words.query_tokens[position]}` : `query ${words.query_tokens[position]}`;
    const [verb, unit] = isWeighted() ? ["adds", " of its largest value"] : ["finds", ""];
    const summary = line ? `: head ${words.layer}.${line.head} ${verb} ${words.key_tokens[line.key]}, ${percent(line.weight)}${unit}` : "";
    button.setAttribute("aria-label", `${name}${summary}`);
  });
  document.querySelectorAll("#lines .keys .word").forEach((button, position) => button.setAttribute("aria-label", `key ${words.key_tokens[position]}`));
}

on("words", () => {
  const { words, head } = state;
  if (!words || words.stack !== head?.stack || words.layer !== head.layer) return;
  drawWords(words);
  describeWords();
});
on("head", () => {
  showChoices();
  const { words } = drawing;
  if (words && state.words === words && words.stack === state.head?.stack && words.layer === state.head.layer) linesChanged();
});
on("cell", () => drawing.words && showSelection());
function linesChanged() {
  drawLines();
  describeWords();
}
on("heads", () => {
  showChips();
  linesChanged();
});
on("settings", linesChanged);
on("thumbnails", () => state.head && showChips());
element("word-stack").addEventListener("change", () => openLayer(element("word-stack").value, state.head?.layer ?? 0));
element("word-layer").addEventListener("change", () => openLayer(state.head?.stack ?? "", Number(element("word-layer").value)));
element("layer-before").addEventListener("click", () => openLayer(state.head?.stack ?? "", (state.head?.layer ?? 0) - 1));
element("layer-after").addEventListener("click", () => openLayer(state.head?.stack ?? "", (state.head?.layer ?? 0) + 1));
element("heads-all").addEventListener("click", turnOnAll);
element("heads-none").addEventListener("click", () => turnOn([]));
