// Lines from each written token to the source tokens that a cross-attention head attends to.

import { create, createSvg } from "clearhead/elements.js";
import { createHandle, createSelect } from "clearhead/widget_parts.js";
import { TRANSLATION } from "clearhead/translation_weights.js";

const COLUMN = 78; // width of a token in the picture
const [TOP, BOTTOM, HEIGHT] = [34, 176, 232];
const LEAST = 0.03; // weights below are not drawn
const NAMED = 3; // source tokens that the sentence names
const { source, written, weights } = TRANSLATION;
const layerCount = weights.length;
const headCount = weights[0].length;

/** Return the weights of a head, such as "2.3", or the mean over all heads. @param {string} name @returns {number[][]} */
function headWeights(name) {
  if (name !== "mean") {
    const [layer, head] = name.split(".").map(Number);
    return weights[layer][head].map((row) => row.map((value) => value / 1000));
  }
  const all = weights.flat();
  return written.map((_, row) => source.map((_token, column) => all.reduce((sum, head) => sum + head[row][column], 0) / all.length / 1000));
}

/** Return the name of a head; layers and heads count from 0. @param {string} name */
const headTitle = (name) => (name === "mean" ? `Mean over all ${layerCount * headCount} cross heads` : `cross ${name}`);

/** @param {number} value */
const percent = (value) => `${Math.round(value * 100)} %`;

/** @param {number} index */
const center = (index) => COLUMN * (index + 0.5);

/**
 * @param {HTMLElement} element
 * @param {{ glosses?: string[], head?: string }} options glosses: meaning of each written token
 */
export function mount(element, { glosses = [], head = "mean" }) {
  let chosen = -1; // row of the written token whose lines are drawn alone
  let shownHead = head;
  const names = ["mean", ...weights.flatMap((layer, index) => layer.map((_, each) => `${index}.${each}`))];
  const menu = createSelect("Weights of", names.map(headTitle), names.indexOf(shownHead), (index) => {
    shownHead = names[index];
    show();
  });
  const width = COLUMN * Math.max(source.length, written.length);
  const lines = createSvg("g", { "aria-hidden": "true" });
  const say = create("p", { class: "say", role: "status" });

  /** @param {string} text @param {number} index @param {number} y */
  const word = (text, index, y) => createSvg("text", { x: center(index), y, "text-anchor": "middle" }, text);
  const buttons = written.map((text, row) => {
    const button = createSvg(
      "g",
      { role: "button", tabindex: 0, class: "token", "aria-pressed": "false", "aria-label": `${text}, ${glosses[row] ?? ""}` },
      createSvg("rect", { x: COLUMN * row + 4, y: BOTTOM + 2, width: COLUMN - 8, height: 50, rx: 6 }),
      createSvg("text", { x: center(row), y: BOTTOM + 24, "text-anchor": "middle", lang: "ja", class: "written" }, text),
      createSvg("text", { x: center(row), y: BOTTOM + 43, "text-anchor": "middle", class: "gloss" }, glosses[row] ?? ""),
    );
    const choose = () => {
      chosen = chosen === row ? -1 : row;
      show();
    };
    button.addEventListener("click", choose);
    button.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      choose();
    });
    return button;
  });

  function show() {
    const matrix = headWeights(shownHead);
    lines.replaceChildren(
      ...matrix.flatMap((row, i) =>
        row.map((weight, j) => ({ weight, i, j })).filter(({ weight }) => weight >= LEAST && (chosen < 0 || chosen === i)),
      ).map(({ weight, i, j }) =>
        createSvg("line", { x1: center(i), y1: BOTTOM, x2: center(j), y2: TOP + 8, "stroke-width": (10 * weight).toFixed(2), "stroke-opacity": (0.2 + 0.8 * weight).toFixed(2), "data-cell": `${i + 1},${j + 1}` }),
      ),
    );
    buttons.forEach((button, row) => button.setAttribute("aria-pressed", String(row === chosen)));
    const subject = shownHead === "mean" ? headTitle(shownHead) : `Head ${headTitle(shownHead)}`;
    if (chosen < 0) say.textContent = `${subject}. Choose a Japanese token to see its weights.`;
    else {
      const ranked = matrix[chosen].map((weight, column) => ({ weight, column })).sort((one, other) => other.weight - one.weight);
      const list = ranked.slice(0, NAMED).map(({ weight, column }) => `${source[column]} ${percent(weight)}`);
      say.textContent = `${subject}: while it writes ${written[chosen]} (${glosses[chosen] ?? ""}), the decoder attends to ${list.join(", ")}.`;
    }
    handle.announce();
  }

  const handle = createHandle(() => {
    const matrix = headWeights(shownHead);
    return { cat: matrix[0][1], fish: matrix[1][4], ate: matrix[3][2] };
  });
  element.append(
    create("div", { class: "controls" }, menu),
    create(
      "div",
      { class: "scroll", tabindex: 0, role: "group", "aria-label": "English above, Japanese below, lines of attention between them" },
      createSvg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, class: "alignment" }, lines, ...source.map((text, index) => word(text, index, TOP - 6)), ...buttons),
    ),
    say,
  );
  show();
  return handle;
}
