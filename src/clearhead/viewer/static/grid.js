// Thumbnails of all heads, sorted and filtered.

import { element, make, themeColor } from "clearhead/dom.js";
import { headId, stackTitle } from "clearhead/format.js";
import { PALETTES } from "clearhead/heatmap.js";
import { oneTabStop } from "clearhead/one_tab_stop.js";
import { forgetMissingChoices, keepChoice, setOptions } from "clearhead/selects.js";
import { announce, on, settings, state } from "clearhead/state.js";
import { describeThumbnail, discardThumbnail, makeThumbnail, paintThumbnail, setThumbnailColors } from "clearhead/thumbnail.js";

const MAX_HEADS_ACROSS = 9; // more heads of a layer wrap evenly
const [PAUSE, LONG_PAUSE] = [100, 2000]; // milliseconds until statistics are announced: of all layers, of some

/** @typedef {import("clearhead/thumbnail.js").Thumbnail} Thumbnail */

/** Thumbnails by id, such as "decoder.3.5". @type {Map<string, Thumbnail>} */
const thumbnails = new Map();
const tabStop = oneTabStop(element("grid"), ".thumb");

/** @param {string} id */
export const thumbnailOf = (id) => thumbnails.get(id)?.payload;
/** @param {string} id @returns {{ stack: string, layer: number, head: number } | undefined} */
export const headOf = (id) => thumbnails.get(id);
/** @returns {Iterable<Thumbnail>} */
export const allHeads = () => thumbnails.values();

export function setColors() {
  setThumbnailColors(PALETTES[settings.palette], themeColor("masked"));
  for (const thumbnail of thumbnails.values()) paintThumbnail(thumbnail);
}

export function buildGrid() {
  for (const thumbnail of thumbnails.values()) discardThumbnail(thumbnail);
  thumbnails.clear();
  for (const { name, heads } of state.model.stacks) {
    heads.forEach((count, layer) => {
      for (let head = 0; head < count; head++) thumbnails.set(headId({ stack: name, layer, head }), makeThumbnail(name, layer, head));
    });
  }
  fillSelects();
  arrange();
  describeGrid();
}

/** @param {LayerPayload | null} payload */
export function fillGrid(payload) {
  if (!payload || payload.hide !== settings.hide || payload.weighted !== settings.weighted) return; // an answer to former settings
  const { stack, layer, heads } = payload;
  const filled = heads.flatMap((headPayload, head) => {
    const thumbnail = thumbnails.get(headId({ stack, layer, head }));
    return thumbnail ? [Object.assign(thumbnail, { payload: headPayload })] : [];
  });
  fillSelects(); // the order of the address may become possible
  if ([...thumbnails.values()].every((thumbnail) => thumbnail.payload)) forgetMissingChoices();
  const { statistic, isSorted } = order();
  for (const thumbnail of filled) {
    describeThumbnail(thumbnail, statistic, isSorted);
    paintThumbnail(thumbnail);
  }
  if (isSorted || element("filter").value) arrange();
  describeGrid();
}

/** Write a text if it has changed, because its terms are marked again after each change. @param {string} name @param {string} text */
function write(name, text) {
  if (element(name).textContent !== text) element(name).textContent = text;
}

/** Write the sentences above the thumbnails. */
function describeGrid() {
  const all = [...thumbnails.values()];
  const sampled = Math.max(...state.model.stacks.map((stack) => stack.sampled));
  const meaning = "Each thumbnail is one head: queries down, keys across, brighter for more attention. Below: mean entropy in nats, labels";
  const note = sampled ? ` Sampled: computed from ${sampled} evenly spaced queries (exact rows).` : "";
  const isWeighted = settings.weighted && state.model.stacks.some((stack) => stack.value_weighted);
  const hidden = `${settings.hide ? " The sink is hidden." : ""}${isWeighted ? " Brightness is value-weighted." : ""}`;
  write("heads-note", `${meaning} ${state.model.labeled ? "from the given roles" : "on this text"}.${hidden}${note}`);
  const unlabeled = all.filter(({ payload }) => payload && !payload.labels.length).length;
  const reason = "a label needs one clear habit, such as the previous token, and enough text";
  write("labels-note", unlabeled && all.every(({ payload }) => payload) ? `${unlabeled} of ${all.length} heads have no label: ${reason}.` : "");
}

function fillSelects() {
  const all = [...thumbnails.values()];
  const columns = state.model.columns.filter(([name]) => name !== "entropy" && all.some(({ payload }) => typeof payload?.statistics[name] === "number"));
  setOptions(element("sort-statistics"), columns.map(([name, heading]) => [`most:${name}`, heading]));
  const stacks = state.model.stacks.map((stack) => [`stack:${stack.name}`, stackTitle(stack.name)]);
  const labels = new Set(all.flatMap(({ payload }) => payload?.labels ?? []));
  setOptions(element("filter"), [["", "all"], ...(stacks.length > 1 ? stacks : []), ...[...labels].sort().map((label) => [`label:${label}`, label])]);
}

/** Return the chosen order: the statistic to show and to sort by, and the direction. */
function order() {
  const { value } = element("sort");
  const statistic = value.startsWith("most:") ? value.slice("most:".length) : "entropy";
  return { value, statistic, isSorted: value !== "layer", sign: value === "sharp" || value === "label" ? 1 : -1 };
}

/** @param {Thumbnail} thumbnail */
function matchesFilter(thumbnail) {
  const [kind, name] = [element("filter").value.split(":", 1)[0], element("filter").value.replace(/^\w*:/, "")];
  if (kind === "stack") return thumbnail.stack === name;
  return kind !== "label" || (thumbnail.payload?.labels.includes(name) ?? false);
}

function arrange() {
  const shown = [...thumbnails.values()].filter(matchesFilter);
  const { statistic, isSorted } = order();
  for (const thumbnail of shown) describeThumbnail(thumbnail, statistic, isSorted);
  tabStop.update(() => {
    element("grid").replaceChildren(...(isSorted ? [sorted(shown)] : byLayer(shown)));
    if (!shown.length) element("grid").append(make("p", { className: "quiet", textContent: "No head has this label." }));
  });
}

/** @param {Thumbnail[]} shown */
function sorted(shown) {
  const { value, statistic, sign } = order();
  const size = (/** @type {Thumbnail} */ { payload }) => payload?.statistics[statistic] ?? sign * Infinity; // missing values come last
  const label = (/** @type {Thumbnail} */ { payload }) => payload?.labels[0] ?? "\uffff"; // heads without a label come last
  const compare = (/** @type {Thumbnail} */ one, /** @type {Thumbnail} */ other) =>
    (value === "label" ? label(one).localeCompare(label(other)) : 0) || (size(one) === size(other) ? 0 : sign * (size(one) - size(other)));
  return make("div", { className: "boxes sorted" }, ...[...shown].sort(compare).map((thumbnail) => thumbnail.button));
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

/** Model whose statistics are all announced. Hiding sinks changes thumbnails, but no statistic. @type {ModelPayload | undefined} */
let measured;
/** Timer of a pending announcement. @type {ReturnType<typeof setTimeout> | undefined} */
let pending;

/** Announce the statistics when all layers have arrived. Until then rarely, because the layout of a long table takes time. */
function announceStatistics() {
  if (!state.model || measured === state.model) return;
  const isComplete = [...thumbnails.values()].every((thumbnail) => thumbnail.payload);
  if (isComplete) {
    measured = state.model;
    clearTimeout(pending);
    pending = undefined;
  }
  pending ??= setTimeout(() => {
    pending = undefined;
    announce("statistics");
  }, isComplete ? PAUSE : LONG_PAUSE);
}

let isFirst = true; // a new page starts at the top, so the grid does not scroll to its first head
function markHead() {
  if (!state.head) return;
  for (const thumbnail of thumbnails.values()) thumbnail.button.toggleAttribute("aria-current", false);
  const button = thumbnails.get(headId(state.head))?.button;
  button?.setAttribute("aria-current", "true");
  tabStop.update(() => {});
  const [pane, box] = [element("heads"), button?.getBoundingClientRect()];
  const { top, bottom } = pane.getBoundingClientRect();
  if (!isFirst && box?.height && (box.top < top + 40 || box.bottom > bottom)) pane.scrollTop += box.top - top - (bottom - top) / 2;
  isFirst = false;
}

for (const name of ["sort", "filter"]) keepChoice(name, () => state.model && arrange());
on("model", buildGrid);
on("thumbnails", () => fillGrid(state.thumbnails));
on("thumbnails", announceStatistics);
on("head", markHead);
for (const event of ["settings", "theme"]) on(event, setColors);
on("settings", () => state.model && describeGrid());
