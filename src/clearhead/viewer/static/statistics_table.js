// The table of all heads in numbers: sorted by its headings; a head opens on a click.
//
// A report contains the rows, so that they can be read without scripts. The live page fills them as layers arrive.

import { element, make } from "clearhead/dom.js";
import { headName } from "clearhead/format.js";
import { allHeads } from "clearhead/grid.js";
import { labelChip } from "clearhead/labels.js";
import { oneTabStop } from "clearhead/one_tab_stop.js";
import { on, openHead, state } from "clearhead/state.js";

const DECIMALS = 3;
/** @type {HTMLTableElement} */
const table = element("statistics-table");
const tabStop = oneTabStop(table, "button");
const isStored = table.tBodies[0].rows.length > 0; // the rows of a report

/** @param {MouseEvent} event */
function openChosen({ target }) {
  const { head } = /** @type {HTMLElement} */ (target).dataset;
  if (!head) return;
  openHead(head);
  element("head").scrollIntoView();
}

/** @param {MouseEvent} event */
function sortByHeading({ target }) {
  const heading = /** @type {HTMLElement} */ (target).closest("th");
  if (!heading) return;
  const direction = heading.getAttribute("aria-sort") === "descending" ? "ascending" : "descending";
  for (const other of /** @type {HTMLTableRowElement} */ (heading.parentElement).cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", direction);
  tabStop.update(sortRows);
}

/** Sort the rows by the column of the heading that is marked. */
function sortRows() {
  const headings = [.../** @type {HTMLTableSectionElement} */ (table.tHead).rows[0].cells];
  const column = headings.findIndex((heading) => heading.hasAttribute("aria-sort"));
  if (column < 0) return;
  const isAscending = headings[column].getAttribute("aria-sort") === "ascending";
  const text = (/** @type {HTMLTableRowElement} */ row) => (row.cells[column].textContent ?? "").trim();
  const value = (/** @type {HTMLTableRowElement} */ row) => Number(text(row).replace("−", "-"));
  const compare = (/** @type {HTMLTableRowElement} */ one, /** @type {HTMLTableRowElement} */ other) =>
    value(one) - value(other) || text(one).localeCompare(text(other), "en", { numeric: true });
  const isMissing = (/** @type {HTMLTableRowElement} */ row) => Number(text(row) === ""); // sorts last in both directions
  const rows = [...table.tBodies[0].rows].sort(
    (one, other) => isMissing(one) - isMissing(other) || (isAscending ? compare(one, other) : compare(other, one)),
  );
  table.tBodies[0].append(...rows);
}

/** Fill the table with the layers that have arrived. */
function fillRows() {
  const heads = [...allHeads()].flatMap(({ id, payload, ...head }) => (payload ? [{ id, payload, head }] : []));
  const columns = state.model.columns.filter(([name]) => heads.some(({ payload }) => typeof payload.statistics[name] === "number"));
  const header = /** @type {HTMLTableSectionElement} */ (table.tHead).rows[0];
  const sorted = [...header.cells].find((heading) => heading.hasAttribute("aria-sort"));
  tabStop.update(() => {
    const headings = [["head", ""], ["labels", ""], ...columns.map(([, heading, tooltip]) => [heading, tooltip])];
    header.replaceChildren(...headings.map(([text, title], index) => {
      const heading = make("th", { scope: "col", className: index > 1 ? "number" : "" }, make("button", { type: "button", textContent: text, title }));
      if (sorted?.textContent === text) heading.setAttribute("aria-sort", sorted.getAttribute("aria-sort") ?? "");
      return heading;
    }));
    table.tBodies[0].replaceChildren(...heads.map(({ id, payload, head }) => {
      const button = make("button", { type: "button", className: "place", textContent: headName(head) });
      button.dataset.head = id;
      const cells = columns.map(([name]) => make("td", { className: "number", textContent: cellText(payload.statistics[name]) }));
      return make("tr", {}, make("th", { scope: "row" }, button), make("td", {}, ...payload.labels.map(labelChip)), ...cells);
    }));
    sortRows();
  });
}

/** @param {number | null | undefined} value */
function cellText(value) {
  if (typeof value !== "number") return "";
  const text = Number.isInteger(value) && value !== 0 && value !== 1 ? `${value > 0 ? "+" : ""}${value}` : value.toFixed(DECIMALS);
  return Number(text) === 0 ? "0" : text.replace("-", "−");
}

table.tBodies[0].addEventListener("click", openChosen);
/** @type {HTMLTableSectionElement} */ (table.tHead).addEventListener("click", sortByHeading);
tabStop.update(() => {});
if (!isStored) on("statistics", fillRows);
