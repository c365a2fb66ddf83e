// The table of all heads in numbers: sorted by its headings; a head opens on a click.

import { element } from "clearhead/dom.js";
import { openHead } from "clearhead/state.js";

/** @type {HTMLTableElement} */
const table = element("statistics-table");

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
  const headings = [.../** @type {HTMLTableRowElement} */ (heading.parentElement).cells];
  const column = headings.indexOf(heading);
  const isDescending = heading.getAttribute("aria-sort") === "descending";
  for (const other of headings) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", isDescending ? "ascending" : "descending");
  const text = (/** @type {HTMLTableRowElement} */ row) => (row.cells[column].textContent ?? "").trim();
  const value = (/** @type {HTMLTableRowElement} */ row) => Number(text(row).replace("−", "-"));
  const compare = (/** @type {HTMLTableRowElement} */ one, /** @type {HTMLTableRowElement} */ other) =>
    value(one) - value(other) || text(one).localeCompare(text(other), "en", { numeric: true });
  const isMissing = (/** @type {HTMLTableRowElement} */ row) => Number(text(row) === ""); // sorts last in both directions
  const rows = [...table.tBodies[0].rows].sort(
    (one, other) => isMissing(one) - isMissing(other) || (isDescending ? compare(one, other) : compare(other, one)),
  );
  table.tBodies[0].append(...rows);
}

table.tBodies[0].addEventListener("click", openChosen);
/** @type {HTMLTableSectionElement} */ (table.tHead).addEventListener("click", sortByHeading);
