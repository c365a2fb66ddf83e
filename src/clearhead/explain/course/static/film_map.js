// Maps of a head: a table with one shaded cell per weight, and a small picture for the film strip.

import { create, createSvg, visibleToken } from "clearhead/elements.js";

const MIN_DRAWN = 15; // thousandths; smaller weights are invisible in the small picture

/**
 * Create the large map of a head. Rows belong to the token that is written.
 * @param {string[]} rows @param {string[]} columns
 * @returns {{ element: HTMLElement, show: (weights: number[][], row: number, linked: number | undefined) => void }}
 */
export function createMap(rows, columns) {
  const head = create("tr", {}, create("td"), ...columns.map((token) => create("th", { scope: "col" }, create("bdi", {}, visibleToken(token)))));
  /** @type {HTMLElement[][]} */
  const cells = rows.map(() => columns.map(() => create("td")));
  const lines = rows.map((token, row) => create("tr", {}, create("th", { scope: "row" }, create("bdi", {}, visibleToken(token))), ...cells[row]));
  const table = create("table", { class: "film-map" }, create("thead", {}, head), create("tbody", {}, ...lines));
  return {
    element: create("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Attention weights of the head" }, table),
    show(weights, watched, linked) {
      weights.forEach((values, row) => {
        lines[row].classList.toggle("watched", row === watched);
        values.forEach((value, column) => {
          const cell = cells[row][column];
          cell.style.setProperty("--warm", `${value / 10}%`);
          cell.textContent = value >= 5 ? (value / 1000).toFixed(2).replace(/^0/, "") : "";
          cell.classList.toggle("changed", row === watched && column === linked);
        });
      });
    },
  };
}

/**
 * Create a small picture of a map: one square per weight.
 * @param {number[][]} weights @param {number} watched @param {number | undefined} linked
 */
export function createSmallMap(weights, watched, linked) {
  const height = weights.length;
  const width = weights[0].length;
  const squares = weights.flatMap((values, row) =>
    values.flatMap((value, column) =>
      value < MIN_DRAWN ? [] : [createSvg("rect", { x: column, y: row, width: 1, height: 1, fill: "var(--film-ink)", opacity: value / 1000 })],
    ),
  );
  const mark = { width: 1, height: 1, fill: "none", stroke: "var(--mark)", "stroke-width": 0.22 };
  return createSvg(
    "svg",
    { viewBox: `-0.2 -0.2 ${width + 0.4} ${height + 0.4}`, "aria-hidden": "true", focusable: "false" },
    createSvg("rect", { x: 0, y: 0, width, height, fill: "var(--paper)" }),
    ...squares,
    linked !== undefined && createSvg("rect", { x: linked, y: watched, ...mark }),
  );
}
