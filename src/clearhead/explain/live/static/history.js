// Undo, redo and reset of a layer, and the list of what has changed.
import { difference, structureOf } from "clearhead/layer_difference.js";
import { shortNumber } from "clearhead/number_format.js";

const MAX_STATES = 200;

/** States of a layer, from the first one on. */
export class History {
  /** @param {Layer} start */
  constructor(start) {
    this.start = start;
    /** @type {{ layer: Layer, key: string }[]} */
    this.states = [{ layer: start, key: "" }];
    this.position = 0;
  }

  get layer() {
    return this.states[this.position].layer;
  }

  get canUndo() {
    return this.position > 0;
  }

  get canRedo() {
    return this.position < this.states.length - 1;
  }

  /**
   * Add a state after the current one, and forget the states that were undone.
   * @param {Layer} layer @param {string} [key] successive states with the same key, as of a drag, count as one, and as none
   *   if they return to the state before
   * @returns {Layer}
   */
  push(layer, key = "") {
    if (layer === this.layer) return layer;
    const isContinued = key !== "" && this.states[this.position].key === key && !this.canRedo;
    this.states.length = this.position + (isContinued ? 0 : 1);
    const isReturn = isContinued && JSON.stringify(layer) === JSON.stringify(this.states.at(-1)?.layer);
    if (!isReturn) this.states.push({ layer, key });
    if (this.states.length > MAX_STATES) this.states.shift();
    this.position = this.states.length - 1;
    return layer;
  }

  /** @returns {Layer} */
  undo() {
    this.position = Math.max(0, this.position - 1);
    return this.layer;
  }

  /** @returns {Layer} */
  redo() {
    this.position = Math.min(this.states.length - 1, this.position + 1);
    return this.layer;
  }

  /** Return to the start. This is a new state, so it can be undone. @returns {Layer} */
  reset() {
    return this.push(this.start);
  }

  /** @returns {string[]} what differs from the start, in words */
  changes() {
    return changeList(this.start, this.layer);
  }
}

/** @param {CellPath} path @param {Layer} layer @returns {string} symbol of a matrix, with its head if there are several */
function nameOf([part, name, index], layer) {
  const symbols = { x: "X", memory: "Z", embedding: "W_E", positions: "P" };
  if (part in symbols) return symbols[/** @type {keyof typeof symbols} */ (part)];
  if (part === "given") {
    const [projection, head] = String(name).split("-");
    return `given ${projection[0].toUpperCase()}${Object.keys(layer.given ?? {}).length > 1 ? ` of head ${head}` : ""}`;
  }
  const symbol = `${part === "biases" ? "b" : "W"}_${String(name)[0].toUpperCase()}`;
  const count = name === "query" ? layer.heads : layer.kv_heads;
  return index === undefined || count === 1 ? symbol : `${symbol} of head ${Number(index) + 1}`;
}

/** @param {Layer} layer @returns {Record<string, string>} settings in words */
function settingsOf(layer) {
  const { tokens, heads, kv_heads, split, mask, scaling, softmax, use_output, memory, positions } = structureOf(layer);
  const scale = scaling.d_k ? `1/√${scaling.d_k}` : scaling.scale === null ? "1/√d_k" : shortNumber(scaling.scale);
  return {
    tokens: tokens.join(" "),
    attention: memory ? "cross" : "self",
    "memory tokens": memory ? memory.tokens.join(" ") : "none",
    heads: String(heads),
    "key heads": String(kv_heads),
    split,
    mask: mask.kind === "padding" ? `padding of ${mask.padding}` : mask.kind,
    scale: scaling.on ? scale : "none",
    softmax: `over ${softmax}`,
    W_O: use_output ? "on" : "off",
    positions: positions?.on ? "on" : "off",
    "given matrices": Object.keys(layer.given ?? {}).join(", ") || "none",
  };
}

/**
 * Return what differs between two layers, such as "X row 2 column 3: 0.5 → 0.9" and "mask: none → causal". Cells are
 * compared after the first layer got the tokens, heads and split of the second.
 * @param {Layer} start @param {Layer} layer @returns {string[]}
 */
export function changeList(start, layer) {
  const { cells, matrices } = difference(start, layer);
  const [before, after] = [settingsOf(start), settingsOf(layer)];
  const settings = Object.keys(before).filter((name) => before[name] !== after[name]);
  const masks = [start, layer].map(({ mask }) => JSON.stringify(mask.hidden));
  const isOtherMask = layer.mask.kind === "custom" && start.mask.kind === "custom" && masks[0] !== masks[1];
  // as many heads as key heads is the usual case, which the number of heads implies
  const implied = start.heads === start.kv_heads && layer.heads === layer.kv_heads ? ["key heads"] : [];
  if (start.memory === null || layer.memory === null) implied.push("memory tokens");
  return [
    ...settings.filter((name) => !implied.includes(name)).map((name) => `${name}: ${before[name]} → ${after[name]}`),
    ...(isOtherMask ? ["mask: other cells"] : []),
    ...matrices.map(({ path }) => `${nameOf(path, layer)}: other shape`),
    ...cells.map(
      ({ path, row, column, before: old, after: value }) =>
        `${nameOf(path, layer)} row ${row + 1} column ${column + 1}: ${shortNumber(old)} → ${shortNumber(value)}`,
    ),
  ];
}
