// Labels of heads as colored chips.

import { make } from "clearhead/dom.js";

// kinds of labels: start of the label, and the text of a chip in a narrow thumbnail
const KINDS = [
  ["induction", "induct."],
  ["duplicate", "dupl."],
  ["previous", "prev."],
  ["next", "next"],
  ["self", "self"],
  ["positional", "pos."],
  ["delimiter", "delim."],
  ["first", "first"],
  ["broad", "broad"],
  ["sharp", "sharp"],
];

/** Return a label as a chip. Its text is shorter where there is little room. @param {string} label */
export function labelChip(label) {
  const [kind, short] = KINDS.find(([start]) => label.startsWith(start)) ?? ["relation", label];
  const offset = kind === "positional" ? ` ${label.split(" ")[1]}` : "";
  const chip = make(
    "span",
    { className: "chip", title: label },
    make("span", { className: "long", textContent: label.replace(/ token$/, "") }),
    make("span", { className: "short", textContent: short + offset }),
  );
  chip.dataset.kind = kind;
  return chip;
}
