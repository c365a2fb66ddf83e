// Thumbnails of all heads, sorted and filtered.

import { keepInAddress, writeAddress } from "clearhead/address.js";
import { element, make } from "clearhead/dom.js";
import { fixed, headId, headTitle, stackTitle } from "clearhead/format.js";
import { PALETTES } from "clearhead/heatmap.js";
import { on, openHead, settings, state } from "clearhead/state.js";

const MAX_HEADS_ACROSS = 9; // more heads of a layer wrap evenly

/**
 * @typedef {{ id: string, stack: string, layer: number, head: number, button: any, canvas: any, caption: any, label: any,
 *   payload: ThumbnailPayload | undefined }} Thumbnail
 */

/** Thumbnails by id, such as "decoder.3.5". @type {Map<string, Thumbnail>} */
const thumbnails = new Map();
/** The selected palette, one uint32 per color. @type {Uint32Array} */
let colors;

/** @param {string} id */
export const thumbnailOf = (id) => thumbnails.get(id)?.payload;
/** @param {string} id @returns {{ stack: string, layer: number, head: number } | undefined} */
export const headOf = (id) => thumbnails.get(id);

export function setColors() {
  const bytes = PALETTES[settings.palette].flatMap((color) => [...[1, 3, 5].map((start) => parseInt(color.slice(start, start + 2), 16)), 255]);
  colors = new Uint32Array(new Uint8Array(bytes).buffer);
  for (const thumbnail of thumbnails.values()) paint(thumbnail);
}

/** @param {Thumbnail} thumbnail */
function paint({ canvas, payload }) {
  if (!payload) return;
  const levels = new Uint8Array(payload.levels);
  Object.assign(canvas, { width: payload.keys, height: payload.rows });
  const context = canvas.getContext("2d");
  const image = context.createImageData(payload.keys, payload.rows);
  const pixels = new Uint32Array(image.data.buffer);
  levels.forEach((level, index) => (pixels[index] = colors[level]));
  context.putImageData(image, 0, 0);
}

/** @param {string} stack @param {number} layer @param {number} head */
function addThumbnail(stack, layer, head) {
  const id = headId({ stack, layer, head });
  const canvas = make("canvas", { width: 1, height: 1 });
  const caption = make("span");
  const label = make("span", { className: "label" });
  const button = make("button", { type: "button", className: "thumb" }, canvas, caption, label);
  button.dataset.head = id;
  button.addEventListener("click", () => openHead(id));
  const thumbnail = { id, stack, layer, head, button, canvas, caption, label, payload: undefined };
  describe(thumbnail);
  thumbnails.set(id, thumbnail);
}

/** @param {Thumbnail} thumbnail */
function describe(thumbnail) {
  const { layer, head, button, caption, label, payload } = thumbnail;
  const entropy = payload && payload.entropy !== null ? fixed(payload.entropy) : "";
  caption.textContent = element("sort").value === "layer" ? `${head} · ${entropy}` : `${layer}.${head} · ${entropy}`;
  label.textContent = payload?.labels[0]?.replace(/ token$/, "") ?? "";
  const facts = [headTitle(thumbnail), entropy && `entropy ${entropy} nats`, payload?.labels.join(", ")].filter(Boolean);
  button.title = facts.join("\n");
  button.setAttribute("aria-label", facts.join(", "));
}

export function buildGrid() {
  thumbnails.clear();
  for (const { name, heads } of state.model.stacks) {
    heads.forEach((count, layer) => {
      for (let head = 0; head < count; head++) addThumbnail(name, layer, head);
    });
  }
  const sampled = Math.max(...state.model.stacks.map((stack) => stack.sampled));
  const source = state.model.labeled ? "from the given roles" : "on this text";
  const note = sampled ? ` Sampled: computed from ${sampled} evenly spaced queries (exact rows).` : "";
  element("heads-note").textContent = `Each thumbnail is one head: queries down, keys across, brighter for more attention. Below it: its mean entropy in nats and its main label ${source}.${note}`;
  fillFilter();
  arrange();
}

/** @param {LayerPayload | null} payload */
export function fillGrid(payload) {
  if (!payload) return;
  const { stack, layer, heads } = payload;
  heads.forEach((headPayload, head) => {
    const thumbnail = thumbnails.get(headId({ stack, layer, head }));
    if (!thumbnail) return;
    thumbnail.payload = headPayload;
    describe(thumbnail);
    paint(thumbnail);
  });
  fillFilter();
  if (element("sort").value !== "layer" || element("filter").value) arrange();
}

let wantedFilter = ""; // filter of the address, whose label may not have arrived yet
function fillFilter() {
  const filter = element("filter");
  const stacks = state.model.stacks.map((stack) => [`stack:${stack.name}`, stackTitle(stack.name)]);
  const labels = new Set([...thumbnails.values()].flatMap((thumbnail) => thumbnail.payload?.labels ?? []));
  const options = [["", "all"], ...(stacks.length > 1 ? stacks : []), ...[...labels].sort().map((label) => [`label:${label}`, label])];
  const listed = [...filter.options].map((option) => option.value);
  if (options.map(([value]) => value).join("\n") === listed.join("\n")) return;
  const chosen = wantedFilter || filter.value;
  filter.replaceChildren(...options.map(([value, text]) => make("option", { value, textContent: text })));
  filter.value = options.some(([value]) => value === chosen) ? chosen : "";
}

/** @param {Thumbnail} thumbnail */
function matchesFilter(thumbnail) {
  const [kind, name] = [element("filter").value.split(":", 1)[0], element("filter").value.replace(/^\w*:/, "")];
  if (kind === "stack") return thumbnail.stack === name;
  return kind !== "label" || (thumbnail.payload?.labels.includes(name) ?? false);
}

function arrange() {
  const shown = [...thumbnails.values()].filter(matchesFilter);
  for (const thumbnail of shown) describe(thumbnail);
  const order = element("sort").value;
  element("grid").replaceChildren(...(order === "layer" ? byLayer(shown) : [sorted(shown, order)]));
  if (!shown.length) element("grid").append(make("p", { className: "quiet", textContent: "No head has this label." }));
}

/** @param {Thumbnail[]} shown @param {string} order */
function sorted(shown, order) {
  const entropy = (/** @type {Thumbnail} */ thumbnail) => thumbnail.payload?.entropy ?? Infinity;
  const label = (/** @type {Thumbnail} */ thumbnail) => thumbnail.payload?.labels[0] ?? "\uffff"; // heads without a label come last
  /** @type {Record<string, (one: Thumbnail, other: Thumbnail) => number>} */
  const orders = {
    sharp: (one, other) => entropy(one) - entropy(other),
    broad: (one, other) => entropy(other) - entropy(one),
    label: (one, other) => label(one).localeCompare(label(other)) || entropy(one) - entropy(other),
  };
  return make("div", { className: "boxes" }, ...[...shown].sort(orders[order]).map((thumbnail) => thumbnail.button));
}

/** Return one row per layer. Heads that share a key head are in one box. @param {Thumbnail[]} shown */
function byLayer(shown) {
  const parts = [];
  for (const { name, heads, groups } of state.model.stacks) {
    const inStack = shown.filter((thumbnail) => thumbnail.stack === name);
    if (!inStack.length) continue;
    parts.push(make("h3", { textContent: stackTitle(name) }));
    heads.forEach((count, layer) => {
      const inLayer = inStack.filter((thumbnail) => thumbnail.layer === layer);
      if (!inLayer.length) return;
      const size = count / groups[layer];
      const boxes = [];
      for (let first = 0; first < count; first += size) {
        const group = inLayer.filter((thumbnail) => thumbnail.head >= first && thumbnail.head < first + size);
        const title = size > 1 ? `These heads share key head ${first / size}` : "";
        if (group.length) boxes.push(make("div", { className: size > 1 ? "group shared" : "group", title }, ...group.map((thumbnail) => thumbnail.button)));
      }
      const row = make("div", { className: "layer" }, make("span", { className: "number", textContent: `L${layer}` }), make("div", { className: "boxes" }, ...boxes));
      row.style.setProperty("--across", Math.ceil(count / Math.ceil(count / MAX_HEADS_ACROSS)));
      parts.push(row);
    });
  }
  return parts;
}

let isFirst = true; // a new page starts at the top, so the grid does not scroll to its first head
function markHead() {
  if (!state.head) return;
  for (const thumbnail of thumbnails.values()) thumbnail.button.toggleAttribute("aria-current", false);
  const button = thumbnails.get(headId(state.head))?.button;
  button?.setAttribute("aria-current", "true");
  const [pane, box] = [element("heads"), button?.getBoundingClientRect()];
  const { top, bottom } = pane.getBoundingClientRect();
  if (!isFirst && box?.height && (box.top < top + 40 || box.bottom > bottom)) pane.scrollTop += box.top - top - (bottom - top) / 2;
  isFirst = false;
}

/** @param {string} value */
function restoreSort(value) {
  if (![...element("sort").options].some((option) => option.value === value)) return;
  element("sort").value = value;
  if (state.model) arrange();
}

/** @param {string} value */
function restoreFilter(value) {
  wantedFilter = value;
  element("filter").value = [...element("filter").options].some((option) => option.value === value) ? value : "";
  if (state.model) arrange();
}

for (const name of ["sort", "filter"]) {
  element(name).addEventListener("change", () => {
    wantedFilter = "";
    arrange();
    writeAddress();
  });
}
keepInAddress("sort", () => element("sort").value, restoreSort);
keepInAddress("filter", () => element("filter").value || wantedFilter, restoreFilter);
on("model", buildGrid);
on("thumbnails", () => fillGrid(state.thumbnails));
on("head", markHead);
on("settings", setColors);
