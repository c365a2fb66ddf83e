// The whole Transformer as a picture of boxes. Each box opens a description.

import { create, createButton, createSvg } from "clearhead/elements.js";
import { createHandle } from "clearhead/widget_parts.js";
import { BOXES } from "clearhead/transformer_boxes.js";

/** @typedef {import("clearhead/transformer_boxes.js").Box} Box */

const [ROW, GAP, BOX_WIDTH, HEIGHT, WIDTH] = [40, 12, 150, 588, 440];
const LEFT = { encoder: 34, decoder: 260 };
const BOTTOM = HEIGHT - 50;

/** Return the rectangle of a box. @param {Box} box */
function rectangle({ side, row, height = 1 }) {
  return { x: LEFT[side], y: BOTTOM - (row + height) * ROW + GAP, width: BOX_WIDTH, height: height * ROW - GAP };
}

/** @param {string} id */
const find = (id) => /** @type {Box} */ (BOXES.find((box) => box.id === id));

/** @param {string} path */
const arrow = (path) => createSvg("path", { d: path, class: "arrow", "marker-end": "url(#transformer-tip)" });

/** Draw a frame around the boxes of a layer, from the lowest to the highest. @param {string} first @param {string} last */
function frame(first, last) {
  const [low, high] = [rectangle(find(first)), rectangle(find(last))];
  return createSvg("rect", { x: low.x - 26, y: high.y - 9, width: BOX_WIDTH + 38, height: low.y + low.height - high.y + 30, rx: 10, class: "frame" });
}

/** Draw the shortcut around a box, to the norm above it. @param {Box} norm @param {Box} around */
function shortcut(norm, around) {
  const [to, box] = [rectangle(norm), rectangle(around)];
  const from = box.y + box.height + GAP / 2;
  return arrow(`M${box.x + box.width / 2} ${from}H${box.x - 12}V${to.y + to.height / 2}H${to.x}`);
}

/** Draw the arrows between the boxes, and the frames of what is repeated. */
function background() {
  const tip = createSvg("path", { d: "M0 0 8 4 0 8z", class: "tip" });
  const marker = createSvg("marker", { id: "transformer-tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, tip);
  const drawn = [createSvg("defs", {}, marker), frame("self-attention", "encoder-norm-2"), frame("masked-attention", "decoder-norm-3")];
  for (const side of /** @type {const} */ (["encoder", "decoder"])) {
    BOXES.filter((box) => box.side === side).forEach((box, index, boxes) => {
      const { x, y, width, height } = rectangle(box);
      const below = index ? rectangle(boxes[index - 1]).y : BOTTOM + 22;
      drawn.push(arrow(`M${x + width / 2} ${below}V${y + height + 1}`));
      if (box.kind === "norm") drawn.push(shortcut(box, boxes[index - 1]));
    });
    const text = side === "encoder" ? "The cat ate the fish." : "<s> 猫は 魚 を …";
    drawn.push(createSvg("text", { x: LEFT[side] + BOX_WIDTH / 2, y: BOTTOM + 40, "text-anchor": "middle" }, text));
  }
  const [top, norm, cross] = ["softmax", "encoder-norm-2", "cross-attention"].map((id) => rectangle(find(id)));
  const middle = (LEFT.encoder + BOX_WIDTH + LEFT.decoder - 14) / 2;
  drawn.push(
    arrow(`M${top.x + top.width / 2} ${top.y}V${top.y - 18}`),
    createSvg("text", { x: top.x + top.width / 2 - 12, y: top.y - 8, "text-anchor": "end" }, "next token"),
    arrow(`M${norm.x + norm.width / 2} ${norm.y}V${norm.y - 26}H${middle}V${cross.y + cross.height / 2}H${cross.x}`),
    createSvg("text", { x: LEFT.encoder - 26, y: norm.y - 16 }, "encoder, × 4"),
    createSvg("text", { x: LEFT.decoder - 34, y: rectangle(find("decoder-norm-3")).y + 8, "text-anchor": "end" }, "decoder, × 4"),
  );
  return drawn;
}

/** @param {HTMLElement} element */
export function mount(element) {
  let chosen = BOXES[0];
  const visited = new Set([chosen.id]);
  const panel = create("div", { class: "description", role: "status" });
  const groups = BOXES.map((box) => {
    const { x, y, width, height } = rectangle(box);
    const middle = y + height / 2 + 5 - 9 * (box.text.length - 1);
    const group = createSvg(
      "g",
      { role: "button", tabindex: 0, "aria-pressed": "false", "data-box": box.id, class: `box ${box.kind}`, "aria-label": `${box.text.join(" ")}, ${box.side}` },
      createSvg("rect", { x, y, width, height, rx: 6 }),
      ...box.text.map((line, index) => createSvg("text", { x: x + width / 2, y: middle + 18 * index, "text-anchor": "middle" }, line)),
    );
    group.addEventListener("click", () => choose(box));
    group.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      choose(box);
    });
    return group;
  });

  /** @param {Box} box */
  function choose(box) {
    chosen = box;
    visited.add(box.id);
    show();
  }

  function show() {
    groups.forEach((group, index) => {
      group.setAttribute("aria-pressed", String(BOXES[index] === chosen));
      group.classList.toggle("visited", visited.has(BOXES[index].id));
    });
    const links = chosen.links.map(([page, text]) => {
      const [name, anchor] = page.split("#");
      return create("p", {}, create("a", { href: anchor ? `#${anchor}` : `${name}.html` }, text));
    });
    panel.replaceChildren(
      create("p", { class: "name" }, `${chosen.text.join(" ")} (${chosen.side})`),
      create("dl", {}, create("dt", {}, "in"), create("dd", {}, chosen.input), create("dt", {}, "out"), create("dd", {}, chosen.output), create("dt", {}, "shapes"), create("dd", {}, chosen.shapes)),
      create("p", {}, chosen.does),
      ...links,
    );
    count.textContent = `${visited.size} of ${BOXES.length} boxes opened`;
    handle.announce();
  }

  const handle = createHandle(() => ({ visited: visited.size }));
  const count = create("span", { class: "quiet" });
  /** @param {number} by */
  const walk = (by) => choose(BOXES[(BOXES.indexOf(chosen) + by + BOXES.length) % BOXES.length]);
  element.append(
    create("div", { class: "controls" }, createButton("← Previous box", () => walk(-1), { class: "button" }), createButton("Next box →", () => walk(1), { class: "button" }), count),
    create("div", { class: "transformer" }, createSvg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "group", "aria-label": "The Transformer" }, ...background(), ...groups), panel),
  );
  show();
  return handle;
}
