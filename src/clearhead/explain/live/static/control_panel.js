// Controls of the layer: tokens, mask, scaling, softmax, heads, split, cross-attention, positions and W_O.

import { create } from "clearhead/elements.js";
import { possibleHeads, setCross, setHeads, setMask, setPositions, setScaling, setSoftmax, setSplit, setTokens, splitReason, useOutput } from "clearhead/change_layer.js";
import { parseNumber, shortNumber } from "clearhead/number_format.js";
import { readTokens, tokensText } from "clearhead/token_list.js";

/** @typedef {(change: (layer: Layer) => Layer) => void} Apply */
/** @typedef {{ element: HTMLElement, update: (layer: Layer) => void }} Control */

let count = 0;

/** Label a form control. @param {string} text @param {HTMLElement} input @param {...Node} further */
function labeled(text, input, ...further) {
  input.id ||= `live-control-${++count}`;
  return create("div", { class: "control" }, create("label", { for: input.id }, text), input, ...further);
}

/**
 * Create a menu.
 * @param {string} text
 * @param {[string, string][]} options value and text of each
 * @param {(value: string) => void} choose
 */
function menu(text, options, choose) {
  /** @type {HTMLSelectElement} */
  const select = create("select", {}, ...options.map(([value, name]) => create("option", { value }, name)));
  select.addEventListener("change", () => choose(select.value));
  return { select, element: labeled(text, select) };
}

/** @param {string} text @param {(on: boolean) => void} choose */
function checkbox(text, choose) {
  /** @type {HTMLInputElement} */
  const box = create("input", { type: "checkbox" });
  box.addEventListener("change", () => choose(box.checked));
  return { box, element: create("div", { class: "control" }, create("label", {}, box, " ", text)) };
}

/** Create a field whose text is taken over with Enter or when it is left. @param {Record<string, string>} attributes @param {(text: string) => void} take */
function field(attributes, take) {
  /** @type {HTMLInputElement} */
  const input = create("input", { type: "text", autocomplete: "off", spellcheck: "false", ...attributes });
  input.addEventListener("change", () => take(input.value));
  return input;
}

/** @param {Apply} apply @returns {Control} */
function tokensControl(apply) {
  const queries = field({ class: "words" }, (text) => apply((layer) => setTokens(layer, readTokens(text))));
  const keys = field({ class: "words" }, (text) => apply((layer) => setTokens(layer, readTokens(text), "key")));
  const memory = labeled("Tokens of Z", keys);
  return {
    element: create("div", { class: "token-controls" }, labeled("Tokens", queries), memory),
    update({ tokens, memory: source }) {
      queries.value = tokensText(tokens);
      memory.hidden = !source;
      keys.value = tokensText(source?.tokens ?? []);
    },
  };
}

/** @param {Apply} apply @returns {Control} */
function maskControl(apply) {
  /** @type {[string, string][]} */
  const kinds = [["none", "none"], ["causal", "causal"], ["padding", "padding"], ["custom", "custom cells"]];
  const { select, element } = menu("Mask", kinds, (kind) => apply((layer) => setMask(layer, /** @type {Mask["kind"]} */ (kind))));
  const hidden = field({ class: "short", type: "number", min: "0", step: "1" }, (text) => apply((layer) => setMask(layer, "padding", Number(text))));
  const padding = labeled("last keys hidden", hidden);
  element.append(padding);
  return {
    element,
    update({ mask, memory, tokens }) {
      select.value = mask.kind;
      for (const option of select.options) option.disabled = option.value === "causal" && memory !== null;
      padding.hidden = mask.kind !== "padding";
      hidden.max = String((memory?.tokens ?? tokens).length);
      hidden.value = String(mask.padding);
    },
  };
}

/** @param {Apply} apply @returns {Control} */
function scaleControl(apply) {
  const { box, element } = checkbox("Scaling", (on) => apply((layer) => setScaling(layer, on, layer.scaling.scale)));
  const factor = field({ class: "short" }, (text) => {
    const value = text.trim() ? parseNumber(text) : null;
    apply((layer) => setScaling(layer, true, value));
  });
  const root = create("button", { type: "button", title: "Divide by the root of the width of the keys" }, "1/√d_k");
  root.addEventListener("click", () => apply((layer) => setScaling(layer, true, null)));
  const value = labeled("factor", factor, root);
  element.append(value);
  return {
    element,
    update(layer) {
      const { on, scale, d_k } = layer.scaling;
      box.checked = on;
      value.hidden = !on;
      root.disabled = scale === null;
      factor.value = shortNumber(scale ?? (d_k ?? layer.weights.query[0][0].length) ** -0.5);
    },
  };
}

/** @param {Apply} apply @returns {Control} */
function softmaxControl(apply) {
  const { select, element } = menu("Softmax over", [["rows", "rows"], ["columns", "columns"]], (axis) =>
    apply((layer) => setSoftmax(layer, /** @type {Layer["softmax"]} */ (axis))),
  );
  return { element, update: ({ softmax }) => void (select.value = softmax) };
}

/** @param {Apply} apply @returns {Control} */
function headsControl(apply) {
  const { select, element } = menu("Heads", [], (heads) => apply((layer) => setHeads(layer, Number(heads))));
  return {
    element,
    update(layer) {
      const heads = [...new Set([...possibleHeads(layer), layer.heads])].sort((one, other) => one - other);
      select.replaceChildren(...heads.map((each) => create("option", { value: each }, String(each))));
      select.value = String(layer.heads);
    },
  };
}

/** @param {Apply} apply @returns {Control} */
function splitControl(apply) {
  const { select, element } = menu("Each head reads", [["project", "all columns of X"], ["slice", "its slice of X"]], (split) =>
    apply((layer) => setSplit(layer, /** @type {Layer["split"]} */ (split))),
  );
  return {
    element,
    update(layer) {
      select.value = layer.split;
      const reason = layer.split === "slice" ? "" : splitReason(layer, "slice");
      select.options[1].disabled = Boolean(reason);
      select.title = reason;
    },
  };
}

/** @param {Apply} apply @returns {Control} */
function crossControl(apply) {
  const { select, element } = menu("Keys and values from", [["self", "X (self-attention)"], ["cross", "Z (cross-attention)"]], (source) =>
    apply((layer) => setCross(layer, source === "cross")),
  );
  return { element, update: ({ memory }) => void (select.value = memory ? "cross" : "self") };
}

/** @param {Apply} apply @returns {Control} */
function positionsControl(apply) {
  const { box, element } = checkbox("Positions", (on) => apply((layer) => setPositions(layer, on)));
  return { element, update: ({ positions }) => void (box.checked = Boolean(positions?.on)) };
}

/** @param {Apply} apply @returns {Control} */
function outputControl(apply) {
  const { box, element } = checkbox("W_O", (on) => apply((layer) => useOutput(layer, on)));
  return { element, update: (layer) => void (box.checked = layer.use_output) };
}

/** @type {Record<string, (apply: Apply) => Control>} */
const CONTROLS = {
  tokens: tokensControl,
  mask: maskControl,
  scale: scaleControl,
  softmax: softmaxControl,
  heads: headsControl,
  split: splitControl,
  cross: crossControl,
  positions: positionsControl,
  output: outputControl,
};

/** Create the controls with some names. @param {string[]} names @param {Apply} apply @returns {Control} */
export function controlPanel(names, apply) {
  const controls = names.flatMap((name) => (Object.hasOwn(CONTROLS, name) ? [CONTROLS[name](apply)] : []));
  return {
    element: create(
      "details",
      { class: "settings", open: !matchMedia("(max-width: 46rem)").matches, hidden: !controls.length },
      create("summary", {}, "Settings"),
      create("div", { class: "controls" }, ...controls.map(({ element }) => element)),
    ),
    update: (layer) => controls.forEach((control) => control.update(layer)),
  };
}
