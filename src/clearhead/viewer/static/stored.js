// Stored data of a report: the arrays of each layer, unpacked on first use.

import { element } from "clearhead/dom.js";

/** @type {StoredModel} */
export const MODEL = JSON.parse(element("stored-model").textContent);

/** Token lists, set by `unpackTokens`. @type {string[][]} */
let texts;

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

export async function unpackTokens() {
  texts = await unpackedJson("tokens");
  nextTokens = new Map(await unpackedJson("next-tokens"));
}

/** Return the next tokens after a query, if its stack predicts any. @param {string} stack @param {number} query @returns {NextTokensPayload | null} */
export function nextTokensAt(stack, query) {
  const isSource = stack === "encoder" && MODEL.stacks.some(({ name }) => name === "decoder");
  const tokens = isSource ? undefined : nextTokens.get(query);
  return tokens ? { stack, query, tokens } : null;
}

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
 * @typedef {ThumbnailPayload & { topKeys: any, topWeights: any, entropies: () => Float32Array,
 *   receipts: () => Float32Array, values: (reduce: string) => Float32Array }} StoredHead
 */

/** Heads by layer, such as "decoder.3". @type {Map<string, Promise<StoredHead[]>>} */
const layers = new Map();

/** @param {string} name @param {number} layer @returns {Promise<StoredHead[]>} */
export function storedLayer(name, layer) {
  const id = `${name}.${layer}`;
  const stored = layers.get(id) ?? unpacked(`layer-${name}-${layer}`).then((buffer) => headsIn(buffer, stackNamed(name), layer));
  layers.set(id, stored);
  return stored;
}

/** Return the heads of a layer. The arrays are in the order of `ReportLayer.pack`. @param {ArrayBuffer} buffer @param {StoredStack} stack @param {number} layer */
function headsIn(buffer, stack, layer) {
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
  const largest = take(stack.cells ? Uint16Array : Uint8Array, rows * keys);
  const mean = stack.cells ? largest : take(Uint8Array, rows * keys);
  return heads.map((facts, head) => ({
    ...facts,
    rows,
    keys,
    topKeys: topKeys(head),
    topWeights: topWeights(head),
    entropies: () => halves(entropy(head)),
    receipts: () => halves(received(head)).map((share) => share * facts.received),
    values: (/** @type {string} */ reduce) => weightsOf((reduce === "max" ? largest : mean)(head), stack),
    levels: stack.cells ? levelsOf(halves(largest(head)), stack.floor) : largest(head),
  }));
}

// shades 1 to 255 are weights from `floor` to 1 on a logarithmic scale; shade 0 is a weight of 0
const weightsOf = (/** @type {any} */ map, /** @type {StoredStack} */ { cells, floor }) =>
  cells ? halves(map) : Float32Array.from(map, (/** @type {number} */ level) => (level ? floor ** (1 - level / 255) : 0));
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
