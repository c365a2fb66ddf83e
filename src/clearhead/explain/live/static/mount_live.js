// A live calculation: a layer whose numbers can be edited, with every step recomputed at once.
//
// The explain page and the pages of the course call `mountLive`. The layer is the only state. A change gives a new layer;
// the calculation, the tables and the controls follow from it.

import { calculate } from "clearhead/calculate.js";
import { markAncestry } from "clearhead/cell_marks.js";
import { editCells } from "clearhead/cell_editor.js";
import { attempt, dropGiven, setCell, toggleMaskCell } from "clearhead/change_layer.js";
import { controlPanel } from "clearhead/control_panel.js";
import { create } from "clearhead/elements.js";
import { exportPanel } from "clearhead/export_panel.js";
import { historyPanel } from "clearhead/history_panel.js";
import { followAddress, linkTo } from "clearhead/layer_address.js";
import { originText } from "clearhead/matrix_origin.js";
import { shownSteps, StepList } from "clearhead/step_list.js";

const ALL_CONTROLS = ["tokens", "mask", "scale", "softmax", "heads", "split", "cross", "positions", "output", "history", "export"];
const ANNOUNCE_MS = 400; // after the last of several quick changes
const SHOWN_MS = 6000; // then the message about a change no longer covers a part of the page

/**
 * @typedef {{
 *   layer: Layer, steps?: string[], heads?: number[], controls?: string[], digits?: number, title?: string,
 *   level?: number, anchors?: boolean, link?: string, origins?: Record<string, string>, notes?: Record<string, string>,
 *   cells?: Record<string, [number, number][]>
 * }} LiveConfig `steps` and `heads` (from 1) select the steps that are shown; `level` is that of their headings; with
 *   `anchors`, the ids of sections are those of steps; `link` is the name of the layer in the address; `origins`, `notes`
 *   and `cells` are sources of matrices, sentences and selected cells by id
 * @typedef {{
 *   element: HTMLElement, layer: () => Layer, calculation: () => Calculation, set: (layer: Layer) => void,
 *   onChange: (listener: (live: Live) => void) => void
 * }} Live
 */

let mounted = 0;

/**
 * Show a live calculation in an element.
 * @param {HTMLElement} element its content is replaced
 * @param {LiveConfig} config
 * @returns {Live}
 */
export function mountLive(element, config) {
  const prefix = config.anchors ? "" : `live-${++mounted}-`;
  const digits = config.digits ?? 3;
  const initial = calculate(config.layer);
  let calculation = initial;
  /** @type {((live: Live) => void)[]} */
  const listeners = [];

  const steps = new StepList({
    digits,
    level: config.level ?? 3,
    anchor: (id) => prefix + id,
    origin: (matrix) => originText(matrix, calculation, initial, config.origins ?? {}),
    note: (step) => (isUnchanged(step) ? (config.notes?.[step.id] ?? "") : ""),
    cells: (step) => config.cells?.[step.id]?.filter(([row, column]) => step.values[row]?.[column] !== undefined),
    compute: () => apply(dropGiven),
  });
  /** @param {Step} step */
  const isUnchanged = (step) => JSON.stringify(initial.matrices.get(step.id)?.values) === JSON.stringify(step.values);

  const status = create("p", { class: "live-status", role: "status" });
  const names = config.controls ?? ALL_CONTROLS;
  const panel = controlPanel(names, (change) => void apply(change));
  const past = historyPanel(config.layer, (layer) => show(layer));
  const taken = exportPanel({
    title: config.title ?? "",
    link: () => (config.link ? linkTo(config.link, config.layer, calculation.layer) : ""),
    layer: () => calculation.layer,
    sections: () => steps.sections,
    say,
  });

  /** Say a text. A change that is not announced yet does not replace it. @param {string} text */
  function say(text) {
    clearTimeout(timer);
    announced = null;
    status.textContent = text;
  }

  /**
   * Change the layer. A refused change gives a message and leaves the layer as it is.
   * @param {(layer: Layer) => Layer} change
   * @param {number} [session] changes of one session are one step of the history
   */
  function apply(change, session) {
    const { layer, message } = attempt(calculation.layer, change);
    if (message) {
      panel.update(calculation.layer);
      say(message[0].toUpperCase() + message.slice(1) + ".");
      return false;
    }
    past.add(layer, session);
    show(layer);
    return true;
  }

  let timer = 0;
  /** @type {Calculation | null} */
  let announced = null; // calculation before several quick changes
  /** Say how the output changed, once after several quick changes. @param {Calculation} before */
  function announce(before) {
    announced ??= before;
    clearTimeout(timer);
    timer = setTimeout(() => {
      const text = changeText(announced ?? before, calculation);
      announced = null;
      status.textContent = text;
      setTimeout(() => status.textContent === text && (status.textContent = ""), SHOWN_MS);
    }, ANNOUNCE_MS);
  }

  /** @param {Layer} layer */
  function show(layer) {
    const before = calculation;
    calculation = calculate(layer);
    steps.show(shownSteps(calculation, config), calculation);
    panel.update(layer);
    marks.refresh();
    announce(before);
    for (const listener of listeners) listener(live);
  }

  element.classList.add("calculation", "live");
  element.replaceChildren(
    create(
      "div",
      { class: "live-bar", hidden: !names.length },
      panel.element,
      names.includes("history") && past.element,
      names.includes("export") && taken.element,
    ),
    steps.element,
    status,
  );
  const marks = markAncestry(steps.element, { sections: () => steps.sections, calculation: () => calculation, digits });
  editCells(steps.element, {
    change({ table, row, column }, value, session) {
      const address = table.address(row, column);
      const { path } = /** @type {Matrix} */ (calculation.matrices.get(address.id));
      return apply((layer) => setCell(layer, /** @type {CellPath} */ (path), address.row, address.column, value), session);
    },
    toggle({ table, row, column }) {
      const address = table.address(row, column);
      apply((layer) => toggleMaskCell(layer, address.row, address.column));
    },
    say,
  });
  past.listen(element);

  /** @type {Live} */
  const live = {
    element,
    layer: () => calculation.layer,
    calculation: () => calculation,
    set: (layer) => void apply(() => layer),
    onChange: (listener) => void listeners.push(listener),
  };
  steps.show(shownSteps(calculation, config), calculation);
  panel.update(calculation.layer);
  if (config.link) followAddress(config.link, config.layer, live, say);
  return live;
}

/** Return how the last step changed. @param {Calculation} before @param {Calculation} after */
function changeText(before, after) {
  const [old, last] = [before.steps.at(-1), after.steps.at(-1)];
  if (!old || !last) return "";
  const cells = last.values.flat();
  if (old.values.length !== last.values.length || old.values[0].length !== last.values[0].length) {
    return `${last.symbol} now has ${last.values.length} rows and ${last.values[0].length} columns.`;
  }
  const earlier = old.values.flat();
  const changed = cells.filter((value, index) => Math.abs(value - earlier[index]) > 1e-12).length;
  return changed ? `${changed} of ${cells.length} numbers of ${last.symbol} changed.` : `${last.symbol} did not change.`;
}
