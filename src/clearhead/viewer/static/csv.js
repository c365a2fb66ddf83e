// The window of the heatmap as comma-separated values (RFC 4180).

import { rangeText } from "clearhead/format.js";
import { tokenOf } from "clearhead/shown_matrix.js";

const BYTE_ORDER_MARK = "\ufeff"; // spreadsheets then read the file as UTF-8

/**
 * Return a table with one row per query and one column per key. Headings start with the index or the range, which
 * tells equal tokens apart and keeps a spreadsheet from reading a token such as "=1+1" as a formula.
 * @param {import("clearhead/shown_matrix.js").ShownMatrix} matrix
 */
export function asCsv(matrix) {
  const { rows, keys, values, digits } = matrix;
  const heading = (/** @type {"query" | "key"} */ side, /** @type {import("clearhead/shown_matrix.js").Range} */ range) =>
    quoted([rangeText(...range), tokenOf(side, range)].filter((part) => part !== undefined).join(" "));
  const cell = (/** @type {number | undefined} */ value) =>
    value === undefined ? "" : String(digits === undefined ? value : Number(value.toPrecision(digits)));
  const lines = [["query", ...keys.map((range) => heading("key", range))]];
  rows.forEach((range, row) => lines.push([heading("query", range), ...values[row].map(cell)]));
  return BYTE_ORDER_MARK + lines.map((line) => `${line.join(",")}\r\n`).join("");
}

/** @param {string} text */
const quoted = (text) => `"${text.replaceAll('"', '""')}"`;
