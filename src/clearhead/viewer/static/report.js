// The page of a report: answers requests from the stored data instead of a server.

import "clearhead/bars.js";
import "clearhead/borders.js";
import "clearhead/compare.js";
import "clearhead/export.js";
import "clearhead/find.js";
import "clearhead/gestures.js";
import "clearhead/head.js";
import "clearhead/links.js";
import "clearhead/media.js";
import "clearhead/model_output.js";
import "clearhead/pointer.js";
import "clearhead/readout.js";
import "clearhead/skip_links.js";
import "clearhead/statistics_table.js";
import "clearhead/statistics_picture.js";
import "clearhead/token_picture.js";
import "clearhead/table.js";
import "clearhead/term_help.js";
import "clearhead/token.js";
import "clearhead/word_matches.js";
import "clearhead/toolbars.js";
import "clearhead/word_strip.js";
import "clearhead/words.js";
import { fromAddress, restoreSettings } from "clearhead/address.js";
import { paintTheme } from "clearhead/controls.js";
import { pointAt } from "clearhead/cursor.js";
import { element, literal, make } from "clearhead/dom.js";
import { clamp, headId, significant } from "clearhead/format.js";
import { buildGrid, fillGrid, headOf, setColors } from "clearhead/grid.js";
import { figures, whenReady } from "clearhead/heatmap.js";
import { announce, ask, connectRequests, settings, stackShown, state, windowShown } from "clearhead/state.js";
import { HALVES, MODEL, largestWeights, nextTokensAt, optionsFor, shownTops, stackNamed, storedLayer, textsOf, unpackTokens } from "clearhead/stored.js";
import { storedPicture } from "clearhead/stored_picture.js";
import { topTokensOf } from "clearhead/stored_top_tokens.js";
import { storedRow, storedWords } from "clearhead/stored_words.js";
import { answerLinks, answerSearch } from "clearhead/stored_find.js";
import { compareAnswers } from "clearhead/stored_compare.js";
import { drawStoredHead, drawStoredWindow, drawTicks, setPalette, setTheme } from "clearhead/stored_figures.js";

const MAX_WINDOW_TOKENS = 512; // longest side of a window whose tokens are shown
/** @type {import("clearhead/stored.js").StoredHead} */
let shown; // stored data of the current head
/** @type {import("clearhead/stored.js").StoredHead[]} */
let layerHeads; // stored data of all heads of its layer
/** The selected cell; reset when the stack changes. @type {{ query: number, key: number } | undefined} */
let cell;

let opening = 0;
/** @param {Record<string, any>} request */
async function go({ head, rows, keys, cursor }) {
  const { stack: name, layer, head: index } = headOf(head) ?? state.head ?? /** @type {any} */ (headOf(MODEL.first));
  const turn = ++opening;
  const stored = await storedLayer(name, layer);
  if (turn !== opening) return; // another head was selected in the meantime
  layerHeads = stored;
  shown = stored[index];
  const stack = stackNamed(name);
  if (state.head?.stack !== name) cell = undefined;
  state.head = { stack: name, layer, head: index };
  announce("head");
  const axes = [[figures.map.y_range, stack.queries], [figures.map.x_range, stack.keys]];
  for (const [range, length] of axes) range.setv({ bounds: null, min_interval: null }), range.setv({ start: 0, end: length });
  drawStoredHead(shown, stack);
  zoom({ rows, keys });
  for (const [range, length] of axes) range.setv({ bounds: [0, length], min_interval: Math.min(4, length) });
  const [query, key] = cursor ?? (cell ? [cell.query, cell.key] : strongest(stack));
  select({ query, key });
}

/** Return the cell with the largest stored weight, with sink keys scaled down. @param {StoredStack} stack */
function strongest(stack) {
  const hidden = new Set(stack.hidden);
  let best = [0, 0, -1];
  for (let index = 0; index < shown.topWeights.length; index++) {
    const key = shown.topKeys[index];
    const weight = HALVES[shown.topWeights[index]] * (hidden.has(key) ? 0.01 : 1);
    const row = Math.floor(index / stack.top);
    if (weight > best[2]) best = [stack.places ? stack.places[row] : row, key, weight];
  }
  return best;
}

// -- the window ----------------------------------------------------------------------------------------------------------------

/** @param {Record<string, any>} request */
function zoom({ rows, keys }) {
  const stack = stackShown();
  const fitted = (/** @type {number[] | undefined} */ wanted, /** @type {number} */ length) => {
    const [low, high] = [...(wanted ?? [0, length])].sort((one, other) => one - other);
    const start = clamp(Math.floor(low), 0, length - 1);
    return [start, clamp(Math.ceil(high), start + 1, length)];
  };
  const [row, rowEnd] = fitted(rows, stack.queries);
  const [key, keyEnd] = fitted(keys, stack.keys);
  figures.map.y_range.setv({ start: rowEnd, end: row });
  figures.map.x_range.setv({ start: key, end: keyEnd });
  windowMoved([row, rowEnd, key, keyEnd]);
}

function panned() {
  const { queries, keys } = stackShown();
  const { x_range: across, y_range: down } = figures.map;
  const inside = (/** @type {number} */ low, /** @type {number} */ high, /** @type {number} */ length) => [
    clamp(Math.floor(low + 1e-6), 0, length - 1), clamp(Math.ceil(high - 1e-6), 1, length),
  ];
  windowMoved([...inside(down.end, down.start, queries), ...inside(across.start, across.end, keys)]);
}

/** @param {number[]} window */
function windowMoved([row, rowEnd, key, keyEnd]) {
  const stack = stackShown();
  const inside = (/** @type {"query" | "key"} */ side, /** @type {number} */ start, /** @type {number} */ end) =>
    end - start <= MAX_WINDOW_TOKENS ? textsOf(stack, side).slice(start, end) : [];
  const rows = inside("query", row, rowEnd);
  const written = rows.length ? (textsOf(stack, "written")?.slice(row, rowEnd) ?? null) : null;
  state.tokens = { window: [row, rowEnd, key, keyEnd], row, rows, written, key, keys: inside("key", key, keyEnd) };
  drawTicks(stack, state.tokens.window);
  drawStoredWindow(shown, stack, state.tokens.window);
  announce("tokens");
  announceWords();
}

// -- a cell --------------------------------------------------------------------------------------------------------------------

/** @param {Record<string, any>} request */
function select({ query, key }) {
  const stack = stackShown();
  cell = { query: clamp(query, 0, stack.queries - 1), key: clamp(key, 0, stack.keys - 1) };
  const cursor = figures.map.renderers.find((/** @type {any} */ renderer) => renderer.name === "cursor");
  cursor.data_source.data = { x: [cell.key + 0.5], y: [cell.query + 0.5] };
  state.cell = { ...cell, query_token: textsOf(stack, "query")[cell.query], key_token: textsOf(stack, "key")[cell.key], written: textsOf(stack, "written")?.[cell.query] ?? "", weight: weightAt(stack, cell), share: shown.shares()?.[cell.key] };
  announce("cell");
  state.next_tokens = nextTokensAt(stack.name, cell.query);
  announce("next_tokens");
  announceWords();
  answerTopTokens(stack, cell);
}

/** Return the weight of a cell, if it is stored; not that of its bin. @param {StoredStack} stack @param {{ query: number, key: number }} cell */
function weightAt(stack, cell) {
  if (stack.cells) return shown.values("max")[cell.query * stack.keys + cell.key];
  const { query, tops } = largestWeights(shown, stack, cell.query);
  return query === cell.query ? tops.find(([key]) => key === cell.key)?.[2] : undefined;
}

/** Announce the words around the selected cell, and the weights of its query for the keys of the window. */
function announceWords() {
  const stack = stackShown();
  if (!cell || !state.head) return;
  const words = storedWords(layerHeads, stack, state.head.layer, cell);
  if (words !== state.words) {
    state.words = words;
    announce("words");
  }
  if (!stack.cells) return showTopKeys();
  const [, , key, keyEnd] = windowShown();
  const { query } = cell;
  const weights = storedRow(shown, stack, query);
  const shares = shown.shares()?.subarray(key, keyEnd) ?? null;
  state.row = { head: headId(state.head), query, start: key, shares, row: Array.from({ length: keyEnd - key }, (_, offset) => weights.get(key + offset) ?? 0) };
  announce("row");
}

/** @param {StoredStack} stack @param {{ query: number, key: number }} asked */
async function answerTopTokens(stack, asked) {
  const layers = await Promise.all(stack.heads.map((_, layer) => storedLayer(stack.name, layer)));
  if (cell !== asked || stack !== stackShown()) return;
  state.top_tokens = topTokensOf(layers, stack, asked);
  announce("top_tokens");
}

/** Answer with the weights over a picture or a sound. Those of a larger matrix are the weights of bins. @param {{ index: number }} request */
function answerGridWeights({ index }) {
  const { queries, keys, bins } = stackNamed(/** @type {HeadPayload} */ (state.head).stack);
  const ofQuery = state.media?.stacks[state.head?.stack ?? ""]?.side === "key";
  const values = shown.values(settings.reduce); // not those of the heatmap, which may still show another head
  const weightOf = (/** @type {number} */ query, /** @type {number} */ key) => values[Math.floor(query / bins[0]) * shown.keys + Math.floor(key / bins[1])];
  const weights = Array.from({ length: ofQuery ? keys : queries }, (_, other) => (ofQuery ? weightOf(index, other) : weightOf(other, index)));
  state.grid_weights = { .../** @type {HeadPayload} */ (state.head), index, weights };
  announce("grid_weights");
}

// -- the text ------------------------------------------------------------------------------------------------------------------

/** List the keys that the selected query attends to most. Reports of long texts do not store all weights. */
function showTopKeys() {
  if (!state.cell) return;
  const stack = stackShown();
  const { query, tops } = shownTops(shown, stack, state.cell.query);
  const chosen = query === state.cell.query ? "" : `, the stored query nearest to ${state.cell.query.toLocaleString("en")}`;
  const items = tops.map(([key, text, weight]) => {
    const button = make("button", { type: "button", className: key === state.cell?.key ? "tok chosen" : "tok", title: `key ${key}` }, literal(text), ` ${significant(weight, 3)}`);
    button.style.setProperty("--share", clamp(weight, 0, 1).toFixed(3));
    button.addEventListener("click", () => pointAt(query, key));
    return make("li", {}, button);
  });
  const token = literal(textsOf(stack, "query")[query]);
  const note = make("p", { className: "quiet" }, `Query ${query.toLocaleString("en")} `, token, `${chosen}: the keys it attends to most in this head${optionsFor(stack).hide ? ", without the sink" : ""}${optionsFor(stack).weighted ? ", value-weighted" : ""}.`);
  element("strip").hidden = false;
  element("strip").replaceChildren(note, make("ol", { className: "kept" }, ...items));
}

// ------------------------------------------------------------------------------------------------------------------------------

/** @type {Record<string, (request: any) => void>} */
const answers = {
  go,
  window: zoom,
  cursor: select,
  search: answerSearch,
  links: answerLinks,
  settings: () => {
    setPalette();
    if (!state.head) return; // settings of the address, before the first head
    drawThumbnails();
    drawStoredHead(shown, stackShown());
    drawStoredWindow(shown, stackShown(), windowShown());
    announceWords();
    if (cell) answerTopTokens(stackShown(), cell);
  },
  theme: setTheme,
  ...compareAnswers,
  picture: async ({ query, key }) => {
    const stack = stackShown();
    const picture = await storedPicture(stack, query, key);
    if (stack !== stackShown() || query !== cell?.query || key !== cell?.key) return;
    state.picture = picture;
    announce("picture");
  },
  grid_weights: answerGridWeights,
};
let drawnThumbnails = ""; // settings of the last thumbnails
/** Draw the thumbnails of all heads with the settings, if these have changed. */
async function drawThumbnails() {
  const { hide, weighted } = settings;
  const id = JSON.stringify([hide, weighted]);
  if (id === drawnThumbnails) return;
  drawnThumbnails = id;
  for (const stack of MODEL.stacks) {
    const options = optionsFor(stack);
    for (const layer of stack.heads.keys()) {
      const heads = (await storedLayer(stack.name, layer)).map((head) => ({ ...head, levels: head.levels(options) }));
      if (drawnThumbnails !== id) return;
      fillGrid({ stack: stack.name, layer, hide, weighted, heads });
    }
  }
  announce("thumbnails");
}

connectRequests((kind, payload) => answers[kind]?.(payload));

whenReady(async () => {
  state.model = MODEL;
  state.media = JSON.parse(element("stored-media").textContent);
  announce("ready");
  buildGrid();
  setColors();
  paintTheme();
  const view = location.hash.length > 1 ? location.hash : `#${MODEL.view}`;
  restoreSettings(view);
  ask("settings", settings);
  figures.map.on_event("rangesupdate", () => state.head && panned());
  await unpackTokens();
  ask("go", fromAddress(view));
  await drawThumbnails();
});
