// Attention over a picture or along a sound: of the selected token, or of the token at the pointer.
//
// The boards draw one side of the matrix, the grid. The weights are those of one token of the other side, the source. In
// self-attention both sides are the same tokens, so a patch of the board is a source too.

import { pointAt } from "clearhead/cursor.js";
import { element, literal, make } from "clearhead/dom.js";
import { clamp, fixed, headId, significant } from "clearhead/format.js";
import { isWeighted } from "clearhead/heatmap.js";
import { patchBoard } from "clearhead/patch_board.js";
import { soundBoard } from "clearhead/sound_board.js";
import { ask, on, state } from "clearhead/state.js";

const MAX_KEPT = 500; // weights of sources that are kept for the head

/** @type {Board[]} */
let boards = [];
/** Buttons of the tokens outside of the grid, by position. @type {Map<number, HTMLElement>} */
const chips = new Map();
/** Stack whose boards are drawn. @type {string | undefined} */
let built;
/** @typedef {{ position: number, isSource: boolean } | undefined} PointedToken */
/** Token of the grid or of the chips at the pointer. @type {PointedToken} */
let pointed;
/** Weights by source, of the head with the name `keptHead`. @type {Map<number, ArrayLike<number>>} */
const kept = new Map();
let keptHead = "";
/** Source that was requested and not answered yet. @type {number | undefined} */
let requested;

const grid = () => (state.head ? state.media?.stacks[state.head.stack] : undefined);
const isSound = () => grid()?.regions.some((region) => "count" in region) ?? false;
const chosenSource = () => state.cell?.[grid()?.side === "key" ? "query" : "key"];
const sourceShown = () => (pointed?.isSource ? pointed.position : chosenSource());

function build() {
  const shown = grid();
  element("media").hidden = !shown;
  element("words").classList.toggle("pictured", Boolean(shown)); // the picture replaces the words
  element("words-heading").textContent = !shown ? "Words" : isSound() ? "Sound" : "Picture";
  if (!shown || !state.head || built === state.head.stack) return;
  built = state.head.stack;
  pointed = undefined;
  boards = shown.regions.map((region) => boardOf(region, shown.same));
  element("media-boards").replaceChildren(...boards.map(({ element: board }) => board));
  boards.forEach(({ element: board }, index) => {
    const [kind, unit, units] = isSound() ? ["Sound", "frame", "frames"] : ["Picture", "patch", "patches"];
    const label = boards.length > 1 ? `${kind} ${index + 1}` : kind;
    board.setAttribute("aria-label", `${label} with the attention of ${shown.same ? `a ${unit} or ` : ""}a token. Arrow keys move between ${units}.`);
  });
  const [unit, deed] = [isSound() ? "frame" : "patch", shown.side === "key" ? "where it looks" : `which ${isSound() ? "frames" : "patches"} look at it`];
  element("media-note").textContent = `Point at ${shown.same ? `a ${unit}${shown.chips.length ? " or " : ""}` : ""}${shown.chips.length ? "a token" : ""} to see ${deed}; select it to keep it.`;
  chips.clear();
  for (const [position, text, time] of shown.chips) chips.set(position, chipOf(position, text, time));
  const [first] = chips.values();
  if (first) first.tabIndex = 0;
  element("media-tokens").replaceChildren(...chips.values());
  element("media-tokens").hidden = !chips.size;
}

/** @param {PatchesRegion | FramesRegion} region @param {boolean} same @returns {Board} */
function boardOf(region, same) {
  const events = {
    point: (/** @type {number | undefined} */ position) => point(position === undefined ? undefined : { position, isSource: same }),
    choose: (/** @type {number} */ position) => (same ? chooseSource(position) : chooseInGrid(position)),
  };
  if ("count" in region) return soundBoard(region, state.media?.sounds[region.sound ?? -1], events);
  return patchBoard(region, state.media?.pictures[region.picture ?? -1], events);
}

/** @param {number} position @param {string} text @param {number | null} time */
function chipOf(position, text, time) {
  const spoken = time === null ? "" : `, ${fixed(time)} s`;
  const chip = make("button", { type: "button", className: "tok", title: `token ${position}${spoken}`, tabIndex: -1 }, literal(text));
  chip.addEventListener("pointerenter", () => point({ position, isSource: true }));
  chip.addEventListener("pointerleave", () => point(undefined));
  chip.addEventListener("click", () => chooseSource(position));
  return chip;
}

// one tab stop for all chips; arrow keys move between them
element("media-tokens").addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
  const all = [...chips.values()];
  const at = all.indexOf(/** @type {HTMLElement} */ (document.activeElement));
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: all.length - 1 }[event.key];
  if (at < 0 || to === undefined) return;
  event.preventDefault();
  all[clamp(to, 0, all.length - 1)].focus();
});
element("media-tokens").addEventListener("focusin", (/** @type {FocusEvent} */ event) => {
  for (const chip of chips.values()) chip.tabIndex = chip === event.target ? 0 : -1;
});

/** @param {number} position */
function chooseSource(position) {
  const { query, key } = state.cell ?? { query: 0, key: 0 };
  if (grid()?.side === "key") pointAt(position, key);
  else pointAt(query, position);
}

/** @param {number} position */
function chooseInGrid(position) {
  const { query, key } = state.cell ?? { query: 0, key: 0 };
  if (grid()?.side === "key") pointAt(query, position);
  else pointAt(position, key);
}

/** @param {PointedToken} token */
function point(token) {
  if (token?.position === pointed?.position) return;
  pointed = token;
  refresh();
}

/** Draw the weights of the source, or ask for them. Answers that are late are drawn only if they are still wanted. */
function refresh() {
  const source = sourceShown();
  if (!grid() || source === undefined || !state.head) return;
  if (keptHead !== headId(state.head)) {
    keptHead = headId(state.head);
    kept.clear();
    requested = undefined;
  }
  const weights = kept.get(source);
  if (weights) show(source, weights);
  else if (requested === undefined) ask("grid_weights", { index: (requested = source) });
}

function arrived() {
  const answer = state.grid_weights;
  if (!answer || headId(answer) !== keptHead) return;
  requested = undefined;
  if (kept.size >= MAX_KEPT) kept.clear();
  kept.set(answer.index, answer.weights);
  refresh();
}

/** @param {number} source @param {ArrayLike<number>} weights */
function show(source, weights) {
  const { same = false, side = "key", chips: tokens = [] } = grid() ?? {};
  const inGrid = boards.flatMap(({ positions }) => positions);
  const strongest = inGrid.reduce((best, position) => (weights[position] > weights[best] ? position : best), inGrid[0]);
  const time = tokens.find(([position]) => position === source)?.[2] ?? undefined;
  const marked = same ? source : state.cell?.[side === "key" ? "key" : "query"];
  for (const board of boards) {
    board.paint(weights, weights[strongest], time);
    board.mark(marked !== undefined && board.has(marked) ? marked : undefined);
  }
  for (const [position, chip] of chips) {
    chip.classList.toggle("chosen", position === source);
    chip.setAttribute("aria-pressed", String(position === chosenSource()));
    if (same) chip.style.setProperty("--share", clamp(weights[position], 0, 1).toFixed(3));
  }
  describe(source, weights, strongest, inGrid);
}

/** Return the name of a token. @param {number} position @param {boolean} inGrid */
function nameOf(position, inGrid) {
  const board = inGrid ? boards.find(({ has }) => has(position)) : undefined;
  return board?.name(position) ?? chips.get(position)?.textContent ?? `token ${position}`;
}

/** @param {number} source @param {ArrayLike<number>} weights @param {number} strongest @param {number[]} inGrid */
function describe(source, weights, strongest, inGrid) {
  const { same = false, side = "key" } = grid() ?? {};
  const name = literal(nameOf(source, same));
  const verb = side === "key" ? " attends most to " : " receives most from ";
  const share = inGrid.reduce((sum, position) => sum + weights[position], 0);
  const whole = boards.length > 1 ? "the pictures receive" : `the ${isSound() ? "sound" : "picture"} receives`;
  const rest = side === "key" ? `; ${whole} ${fixed(share)} of its attention` : "";
  const line = [name, `${verb}${nameOf(strongest, true)}, ${significant(weights[strongest], 3)}${rest}`];
  if (pointed && !pointed.isSource) line.push(` · at the pointer ${nameOf(pointed.position, true)}: ${significant(weights[pointed.position], 3)}`);
  if (isWeighted()) line.push(" · by weight, not value-weighted");
  element("media-readout").replaceChildren(...line);
  if (!pointed) element("media-live").textContent = element("media-readout").textContent;
}

on("head", () => {
  build();
  refresh();
});
on("media", () => {
  built = undefined; // pictures of another text
  build();
  refresh();
});
for (const event of ["cell", "settings", "theme"]) on(event, refresh);
on("grid_weights", arrived);
