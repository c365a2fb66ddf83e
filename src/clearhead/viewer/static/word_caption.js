// The caption of the words: what the heads that are turned on find, in a sentence.

import { element, literal, make } from "clearhead/dom.js";
import { headId, percent, stackTitle } from "clearhead/format.js";
import { headsOn } from "clearhead/head_toggles.js";
import { isWeighted } from "clearhead/heatmap.js";
import { languageOf, on, openHead, state } from "clearhead/state.js";
import { drawing, openLine } from "clearhead/word_lines.js";

/** @typedef {import("clearhead/word_lines.js").Line} Line */

const MAX_FINDS = 3; // in one caption
const MIN_FOUND = 0.3; // smaller weights are not a find

const keyToken = (/** @type {string} */ text) => make("strong", {}, literal(text, languageOf("key")));
const stackName = (/** @type {string} */ stack) => `(${stackTitle(stack).toLowerCase()})`;

/** Return the row of a query in words: the token that it writes, or that it is. @param {string} read @param {string} [written] */
const rowText = (read, written) => (written ? ["when it writes ", make("strong", {}, literal(written, languageOf("query")))] : ["for ", make("strong", {}, literal(read, languageOf("query")))]);

/** @param {string} stack @param {number} layer @param {number} head @param {() => void} open @param {string} [word] */
function headButton(stack, layer, head, open, word = "Head") {
  const button = make("button", { type: "button", className: "place", textContent: `${word} ${layer}.${head}`, title: `Open the heatmap of ${stackTitle(stack)} ${layer}.${head}` });
  button.addEventListener("click", open);
  return button;
}

/** Return what a head does with a key, by its weight or by the size of what it adds. @param {Node} key @param {number} weight */
const finds = (key, weight) => (isWeighted() ? ["adds ", key, `, ${percent(weight)} of its largest value,`] : weight >= MIN_FOUND ? ["finds ", key, `, ${percent(weight)},`] : ["gives ", key, ` ${percent(weight)}`]);

/** Return the sentence of one line. @param {Line} line */
function lineSentence(line) {
  const words = /** @type {WordsPayload} */ (drawing.words);
  const head = headButton(words.stack, words.layer, line.head, () => openLine(line));
  return [head, ` ${stackName(words.stack)} `, ...finds(keyToken(words.key_tokens[line.key]), line.weight), " ", ...rowText(words.query_tokens[line.query], words.written?.[line.query])];
}

/** Return the sentence of the isolated word: its strongest lines, one per head. */
function wordSentence() {
  const word = /** @type {import("clearhead/word_lines.js").Word} */ (drawing.isolated);
  const words = /** @type {WordsPayload} */ (drawing.words);
  const lines = drawing.lines.filter((line) => line[word.side] === word.position).reverse(); // strongest first
  const isSingle = headsOn().length === 1;
  const heads = new Set();
  const listed = lines.filter(({ head }) => isSingle || (!heads.has(head) && heads.add(head)));
  const text = word.side === "query" ? rowText(words.query_tokens[word.position], words.written?.[word.position]) : [keyToken(words.key_tokens[word.position])];
  if (!lines.length) return word.side === "query" ? ["No shown weight ", ...text] : ["No head that is on attends to ", ...text];
  if (isSingle) return [...lineSentence(listed[0]), ...listed.slice(1, MAX_FINDS).flatMap((line) => ["; ", ...partner(line, word.side, false)])];
  const rest = listed.length - MAX_FINDS;
  const parts = listed.slice(0, MAX_FINDS).flatMap((line, index) => [index ? "; " : "", ...partner(line, word.side, true)]);
  const start = word.side === "query" ? text.map((part, index) => (index ? part : `${part[0].toUpperCase()}${part.slice(1)}`)) : text;
  return [...start, ": ", ...parts, rest > 0 ? `; and ${rest} more` : ""];
}

/** Return the other end of a line, with its weight. @param {Line} line @param {"query" | "key"} side @param {boolean} named */
function partner(line, side, named) {
  const words = /** @type {WordsPayload} */ (drawing.words);
  const head = named ? [headButton(words.stack, words.layer, line.head, () => openLine(line), "head"), " "] : [];
  const end = side === "query" ? [keyToken(words.key_tokens[line.key])] : rowText(words.query_tokens[line.query], words.written?.[line.query]);
  return [...head, named && side === "query" ? (isWeighted() ? "adds " : "finds ") : "", ...end, ` ${percent(line.weight)}`];
}

/** Return the sentence of the selected cell. */
function cellSentence() {
  const { cell, head } = state;
  const isOther = cell?.head !== undefined && head && cell.head !== headId(head); // the cell of the shown head follows
  if (!cell || !head || isOther || cell.weight === undefined) return [];
  const button = headButton(head.stack, head.layer, head.head, () => {
    openHead(headId(head), { cursor: [cell.query, cell.key] });
    element("head").scrollIntoView({ block: "start" });
  });
  const shown = cell.weight * (isWeighted() ? (cell.share ?? 1) : 1);
  return [button, ` ${stackName(head.stack)} `, ...finds(keyToken(cell.key_token), shown), " ", ...rowText(cell.query_token, cell.written)];
}

function showCaption() {
  if (!drawing.words || !state.head) return;
  const isOff = !headsOn().length;
  const sentence = isOff ? ["No head is on: choose one to see its lines."] : drawing.pointed ? lineSentence(drawing.pointed) : drawing.isolated ? wordSentence() : cellSentence();
  element("caption").replaceChildren(...sentence);
}

for (const event of ["isolated", "cell", "heads"]) on(event, showCaption);
