// Answers of a report to the requests of compare.js: the pinned head and its difference, from the stored heads.

import { headId } from "clearhead/format.js";
import { headOf } from "clearhead/grid.js";
import { announce, on, settings, stackShown, state, windowShown } from "clearhead/state.js";
import { labelsOf, optionsFor, stackNamed, storedLayer } from "clearhead/stored.js";
import { visibleCells } from "clearhead/stored_figures.js";

const MAX_COMPARED_TOKENS = 40; // longest side whose tokens are drawn

/** @type {string | undefined} */
let pinned;
let turn = 0;
/** The pinned head and the shown one. @type {import("clearhead/stored.js").StoredHead[]} */
let compared = [];

async function refresh() {
  const head = pinned && headOf(pinned);
  if (!head || !state.head) return;
  const now = ++turn;
  const shownId = headId(state.head);
  const [stack, shownStack] = [stackNamed(head.stack), /** @type {StoredStack} */ (stackShown())];
  const [stored, shown] = await Promise.all([head, state.head].map(async (each) => (await storedLayer(each.stack, each.layer))[each.head]));
  if (now !== turn) return;
  const isSameShape = stack.queries === shownStack.queries && stack.keys === shownStack.keys;
  const window = isSameShape ? windowShown() : [0, stack.queries, 0, stack.keys];
  compared = [stored, shown];
  const [values, base] = [stored.values(settings.reduce, optionsFor(stack)), shown.values(settings.reduce, optionsFor(shownStack))];
  const texts = (/** @type {"query" | "key"} */ side, /** @type {number} */ start, /** @type {number} */ end) =>
    end - start <= MAX_COMPARED_TOKENS ? labelsOf(stack, side, start, end) : [];
  const size = (/** @type {StoredStack} */ { queries, keys }) => `${queries.toLocaleString("en")} × ${keys.toLocaleString("en")}`;
  const isWeighted = [stack, shownStack].some((each) => optionsFor(each).weighted);
  const reason = !isSameShape
    ? `The shown matrix has ${size(shownStack)} weights and the pinned one ${size(stack)}, so they have no difference.`
    : isWeighted ? "Value-weighted maps of two heads have different units, so they have no difference." : "";
  state.compare = {
    ...head, shown: shownId, window, row: 0, key: 0, bins: stack.bins, shape: [stored.rows, stored.keys], values,
    cellsOf: (bins) => visibleCells(stored, stack, window, bins),
    difference: reason ? null : base.map((value, index) => value - values[index]), reason,
    queries: texts("query", window[0], window[1]), keys: texts("key", window[2], window[3]),
  };
  announce("compare");
  selectCell();
}

/** Send the weights of the selected cell in both heads, if every cell is stored. */
function selectCell() {
  const { compare, cell } = state;
  if (!compare || !cell) return;
  const { shape, difference, bins } = compare;
  const index = cell.query * shape[1] + cell.key;
  const [pinnedHead, shownHead] = compared;
  const weights = difference && bins[0] === 1 && bins[1] === 1 ? [shownHead, pinnedHead].map((head) => head.values("max")[index]) : [];
  state.compared_cell = { shown: compare.shown, query: cell.query, key: cell.key, weights };
  announce("compared_cell");
}

/** Requests that compare.js sends, by kind. @type {Record<string, (request: any) => void>} */
export const compareAnswers = {
  pin: ({ head }) => {
    pinned = head;
    refresh();
  },
  unpin: () => {
    pinned = undefined;
    turn++;
  },
};
for (const event of ["head", "tokens", "settings"]) on(event, refresh);
on("cell", selectCell);
