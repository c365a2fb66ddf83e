// Stored data of a report: the arrays of each layer, unpacked on first use, and their values with the page's settings.

import { element } from "clearhead/dom.js";
import { settings } from "clearhead/state.js";

/** @type {StoredModel} */
export const MODEL = JSON.parse(element("stored-model").textContent);

/** Token lists, set by `unpackTokens`. @type {string[][]} */
let texts;

/** Labels of the tokens and rows whose texts are too wide for an axis, by these texts. @type {Map<string, string>} */
let labels;

/** The value of each float16 bit pattern. */
export const HALVES = Float32Array.from({ length: 65536 }, (_, bits) => {
  const [sign, exponent, fraction] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction);
});
const halves = (/** @type {Uint16Array} */ values) => Float32Array.from(values, (bits) => HALVES[bits]);

/** @param {string} id */
async function unpacked(id) {
  const bytes = Uint8Array.from(atob(element(id).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

/** @param {string} id */
const unpackedJson = async (id) => JSON.parse(new TextDecoder().decode(await unpacked(id)));

/** Most probable next tokens by position. @type {Map<number, [string, number][]>} */
let nextTokens = new Map();

/** Normalized tokens of the token lists. @type {{ pieces: string[], spaced: boolean }[]} */
let searchable;

export async function unpackTokens() {
  texts = await unpackedJson("tokens");
  labels = new Map(await unpackedJson("labels"));
  searchable = await unpackedJson("searchable-tokens");
  nextTokens = new Map(await unpackedJson("next-tokens"));
}

/** Return the next tokens after a query, if its stack predicts any. @param {string} stack @param {number} query @returns {NextTokensPayload | null} */
export function nextTokensAt(stack, query) {
  const isSource = stack === "encoder" && MODEL.stacks.some(({ name }) => name === "decoder");
  const tokens = isSource ? undefined : nextTokens.get(query);
  return tokens ? { stack, query, tokens } : null;
}

/** Return the normalized tokens of one side. @param {StoredStack} stack @param {"queries" | "keys"} axis */
export const searchableTokens = (stack, axis) => searchable[stack.tokens[axis === "queries" ? 0 : 1]];

/** @param {string} name */
export const stackNamed = (name) => /** @type {StoredStack} */ (MODEL.stacks.find((stack) => stack.name === name));
/**
 * Return the tokens of one side, or the tokens that the queries write, if they write any.
 * @template {"query" | "key" | "written"} Side
 * @param {StoredStack} stack
 * @param {Side} side
 * @returns {Side extends "written" ? string[] | null : string[]}
 */
export const textsOf = (stack, side) => /** @type {any} */ (texts[stack.tokens[["query", "key", "written"].indexOf(side)] ?? -1] ?? null);

/**
 * Return the labels of a range of an axis: tokens, or the token that each query reads and the one that it writes.
 * @param {StoredStack} stack
 * @param {"query" | "key"} side
 * @param {number} start
 * @param {number} end
 */
export function labelsOf(stack, side, start, end) {
  const written = side === "query" ? textsOf(stack, "written") : null;
  return textsOf(stack, side).slice(start, end).map((text, offset) => {
    const name = [text, written?.[start + offset]].filter(Boolean).join("\n"); // no text contains a line break
    return labels.get(name) ?? name.replace("\n", " → ");
  });
}

/**
 * `values` are the weights of cells or bins, `levels` their shades for a thumbnail. `shares` are those of the values.
 * `visible` are the ranges of keys that each query may attend to [ranges, 2, queries].
 * @typedef {Omit<ThumbnailPayload, "levels"> & { visible: Int32Array | undefined, topKeys: any, topWeights: any, entropies: () => Float32Array,
 *   receipts: (options?: ShownOptions) => Float32Array, shares: () => Float32Array | null,
 *   values: (reduce: string, options?: ShownOptions) => Float32Array, levels: (options?: ShownOptions) => Uint8Array }} StoredHead
 */

/** Return the settings that apply to a stack. @param {StoredStack} stack @returns {ShownOptions} */
export const optionsFor = ({ hidden, value_weighted }) => ({ hide: settings.hide && hidden.length > 0, weighted: settings.weighted && value_weighted });
const NO_OPTIONS = { hide: false, weighted: false };

/** Heads by layer, such as "decoder.3". @type {Map<string, Promise<StoredHead[]>>} */
const layers = new Map();

/** @param {string} name @param {number} layer @returns {Promise<StoredHead[]>} */
export function storedLayer(name, layer) {
  const id = `${name}.${layer}`;
  const stored = layers.get(id) ?? unpackedLayer(stackNamed(name), layer);
  layers.set(id, stored);
  return stored;
}

/** @param {StoredStack} stack @param {number} layer */
async function unpackedLayer(stack, layer) {
  const [buffer, visible] = await Promise.all([unpacked(`layer-${stack.name}-${layer}`), visibleRanges(stack, layer)]);
  return headsIn(buffer, visible, stack, layer);
}

/** Return the ranges of a layer's mask, which are stored as differences from query to query. @param {StoredStack} stack @param {number} layer */
async function visibleRanges({ masks, queries }, layer) {
  if (masks[layer] === null) return undefined;
  const ranges = new Int32Array(await unpacked(`mask-${masks[layer]}`));
  for (let index = 0; index < ranges.length; index++) if (index % queries) ranges[index] += ranges[index - 1];
  return ranges;
}

/** Return the heads of a layer. The arrays are in the order of `ReportLayer.pack`. @param {ArrayBuffer} buffer @param {Int32Array | undefined} visible @param {StoredStack} stack @param {number} layer */
function headsIn(buffer, visible, stack, layer) {
  const heads = stack.layers[layer];
  const [rows, keys] = [Math.ceil(stack.queries / stack.bins[0]), Math.ceil(stack.keys / stack.bins[1])];
  let offset = 0;
  const take = (/** @type {any} */ kind, /** @type {number} */ size) => {
    const values = new kind(buffer, offset, heads.length * size);
    offset += values.byteLength;
    return (/** @type {number} */ head) => values.subarray(head * size, (head + 1) * size);
  };
  const topKeys = take(stack.keys < 65536 ? Uint16Array : Uint32Array, stack.kept * stack.top);
  const topWeights = take(Uint16Array, stack.kept * stack.top);
  const entropy = take(Uint16Array, stack.kept);
  const received = take(Uint16Array, Math.ceil(stack.keys / stack.bar));
  const hiddenReceived = take(Uint16Array, stack.hidden_bars.length);
  const shares = stack.value_weighted ? take(Uint16Array, stack.keys) : undefined;
  const cells = stack.cells ? take(Uint16Array, rows * keys) : undefined;
  const takeMaps = () => {
    const [hiddenMax, hiddenMean] = [0, 1].map(() => take(Uint8Array, rows * stack.hidden_bins.length));
    const [max, mean] = [0, 1].map(() => take(Uint8Array, rows * keys));
    return /** @type {Record<string, { all: (head: number) => Uint8Array, hidden: (head: number) => Uint8Array }>} */ ({ max: { all: max, hidden: hiddenMax }, mean: { all: mean, hidden: hiddenMean } });
  };
  const differences = !cells && shares ? takeMaps() : undefined; // of the value-weighted shades
  const shades = cells ? undefined : takeMaps();

  /** Return the weights of all cells of a head. @param {(head: number) => Uint16Array} stored @param {number} head @param {ShownOptions} options */
  function cellWeights(stored, head, { hide, weighted }) {
    const factors = weighted && shares ? halves(shares(head)) : new Float32Array(keys).fill(1);
    for (const key of hide ? stack.hidden : []) factors[key] = 0;
    return halves(stored(head)).map((weight, index) => weight * factors[index % keys]);
  }

  /** Return the shades of all bins of a head. @param {string} reduce @param {number} head @param {ShownOptions} options */
  function binShades(reduce, head, { hide, weighted }) {
    const part = (/** @type {"all" | "hidden"} */ name) => {
      const added = weighted ? differences?.[reduce][name](head) : undefined;
      return Uint8Array.from(/** @type {any} */ (shades)[reduce][name](head), (/** @type {number} */ shade, /** @type {number} */ index) => shade + (added?.[index] ?? 0)); // modulo 256
    };
    const all = part("all");
    if (!hide) return all;
    const columns = stack.hidden_bins;
    part("hidden").forEach((shade, index) => (all[Math.floor(index / columns.length) * keys + columns[index % columns.length]] = shade));
    return all;
  }

  return heads.map((facts, head) => ({
    ...facts,
    visible,
    rows,
    keys,
    topKeys: topKeys(head),
    topWeights: topWeights(head),
    entropies: () => halves(entropy(head)),
    shares: () => (shares ? halves(shares(head)) : null),
    receipts: ({ hide } = NO_OPTIONS) => {
      const bars = halves(received(head));
      if (hide) halves(hiddenReceived(head)).forEach((share, index) => (bars[stack.hidden_bars[index]] = share));
      return bars.map((share) => share * facts.received);
    },
    values: (/** @type {string} */ reduce, options = NO_OPTIONS) => (cells ? cellWeights(cells, head, options) : weightsOf(binShades(reduce, head, options), stack.floor)),
    levels: (options = NO_OPTIONS) => (cells ? levelsOf(cellWeights(cells, head, options), stack.floor) : binShades("max", head, options)),
  }));
}

// shades 1 to 255 are weights from `floor` to 1 on a logarithmic scale; shade 0 is a weight of 0
const weightsOf = (/** @type {Uint8Array} */ shades, /** @type {number} */ floor) => Float32Array.from(shades, (level) => (level ? floor ** (1 - level / 255) : 0));
const levelsOf = (/** @type {Float32Array} */ weights, /** @type {number} */ floor) =>
  Uint8Array.from(weights, (weight) => (weight ? Math.max(1, Math.min(255, Math.round(255 * (1 - Math.log(weight) / Math.log(floor))))) : 0));

/**
 * Return the largest weights of a query, or of the nearest stored query.
 * @param {StoredHead} stored
 * @param {StoredStack} stack
 * @param {number} query
 */
export function largestWeights(stored, stack, query) {
  const { places } = stack;
  const nearest = places ? places.reduce((best, index, row) => (Math.abs(index - query) < Math.abs(places[best] - query) ? row : best), 0) : query;
  /** @type {TopToken[]} */
  const tops = [];
  for (let index = nearest * stack.top; index < (nearest + 1) * stack.top; index++) {
    const [weight, key] = [HALVES[stored.topWeights[index]], stored.topKeys[index]];
    if (weight > 0) tops.push([key, textsOf(stack, "key")[key], weight]);
  }
  return { query: places ? places[nearest] : query, tops };
}

/**
 * Return the largest weights of a query with the page's settings: without sinks, or sorted by the weighted values.
 * @param {StoredHead} stored
 * @param {StoredStack} stack
 * @param {number} query
 */
export function shownTops(stored, stack, query) {
  const { hide, weighted } = optionsFor(stack);
  const shares = weighted ? stored.shares() : null;
  const hidden = new Set(hide ? stack.hidden : []);
  const row = largestWeights(stored, stack, query);
  const visible = row.tops.filter(([key]) => !hidden.has(key)).map(([key, text, weight]) => /** @type {TopToken} */ ([key, text, weight * (shares?.[key] ?? 1)]));
  return { query: row.query, tops: visible.filter(([, , weight]) => weight > 0).sort((one, other) => other[2] - one[2]) };
}
