// A picture of the shown steps: each matrix is drawn with its labels, shades and numbers on one canvas.

/** @typedef {import("clearhead/matrix_table.js").MatrixTable} MatrixTable */
/** @typedef {import("clearhead/step_section.js").StepSection} StepSection */

const FONT = '13px system-ui, "DejaVu Sans", "BIZ UDPGothic", sans-serif';
const TITLE_FONT = 'bold 16px system-ui, "DejaVu Sans", "BIZ UDPGothic", sans-serif';
const [CELL_HEIGHT, PADDING, GAP, MARGIN, TITLE_HEIGHT] = [22, 6, 26, 20, 48];
const MAX_LABEL = 110; // width of a row's or column's label in pixels
const MAX_SIDE = 16_000; // of a canvas, in every browser
const COLORS = { paper: "#ffffff", ink: "#16181d", quiet: "#5a6070", line: "#d5d9e2", panel: "#f5f6f9", warm: [111, 179, 242], cool: [243, 168, 104] };

/** @typedef {{ table: MatrixTable, sign: string, cell: number, label: number, width: number, height: number }} Box */

/** Draw the steps as a PNG file. @param {StepSection[]} sections @param {string} title @returns {Promise<Blob>} */
export async function picturePng(sections, title) {
  const canvas = document.createElement("canvas");
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.font = FONT;
  const rows = sections.map((section) => ({ section, boxes: boxesOf(context, section) }));
  const widths = rows.map(({ boxes }) => boxes.reduce((sum, box) => sum + box.width + GAP, 0));
  const heights = rows.map(({ boxes }) => TITLE_HEIGHT + Math.max(...boxes.map(({ height }) => height)) + GAP);
  const width = Math.max(420, ...widths) + 2 * MARGIN;
  const height = heights.reduce((sum, each) => sum + each, TITLE_HEIGHT + MARGIN);
  const scale = Math.min(2, MAX_SIDE / Math.max(width, height));
  [canvas.width, canvas.height] = [Math.ceil(width * scale), Math.ceil(height * scale)];
  context.scale(scale, scale);
  context.fillStyle = COLORS.paper;
  context.fillRect(0, 0, width, height);
  write(context, title, MARGIN, MARGIN, { font: TITLE_FONT, width: width - 2 * MARGIN });
  let top = TITLE_HEIGHT;
  rows.forEach(({ section, boxes }, index) => {
    drawStep(context, section, boxes, top);
    top += heights[index];
  });
  return new Promise((resolve, reject) => canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("the browser could not draw the picture"))), "image/png"));
}

/** @param {CanvasRenderingContext2D} context @param {StepSection} section @returns {Box[]} */
function boxesOf(context, section) {
  const signs = [...section.element.querySelectorAll(".factor")].map((factor) => factor.querySelector(".sign")?.textContent ?? "");
  return section.tables.map((table, index) => {
    const { rows, columns } = labelsOf(table);
    const measured = (/** @type {string[]} */ texts) => Math.max(...texts.map((text) => Math.min(MAX_LABEL, context.measureText(text).width)));
    const cell = Math.max(40, measured(table.cells.flat().map(({ textContent }) => textContent ?? "")), measured(columns)) + 2 * PADDING;
    const label = measured(rows) + 2 * PADDING;
    return { table, sign: signs[index], cell, label, width: label + cell * columns.length, height: CELL_HEIGHT * (rows.length + 2) };
  });
}

/** @param {MatrixTable} table */
function labelsOf({ table, cells }) {
  const text = (/** @type {Element} */ element) => element.textContent ?? "";
  const columns = [...(table.tHead?.rows[0].cells ?? [])].slice(1, cells[0].length + 1).map(text);
  return { rows: cells.map(([first]) => text(/** @type {HTMLTableRowElement} */ (first.parentElement).cells[0])), columns };
}

/** @param {CanvasRenderingContext2D} context @param {StepSection} section @param {Box[]} boxes @param {number} top */
function drawStep(context, section, boxes, top) {
  write(context, section.heading.textContent ?? "", MARGIN, top, { font: TITLE_FONT });
  write(context, section.formula.getAttribute("aria-label") ?? "", MARGIN, top + CELL_HEIGHT, { color: COLORS.quiet });
  let left = MARGIN;
  for (const box of boxes) {
    if (box.sign) write(context, box.sign, left - GAP + 8, top + TITLE_HEIGHT + box.height / 2, { color: COLORS.quiet });
    drawMatrix(context, box, left, top + TITLE_HEIGHT);
    left += box.width + GAP;
  }
}

/** @param {CanvasRenderingContext2D} context @param {Box} box @param {number} left @param {number} top */
function drawMatrix(context, { table, cell, label }, left, top) {
  const { rows, columns } = labelsOf(table);
  const sizes = table.values.flat().map((value) => (Number.isFinite(value) ? Math.abs(value) : 0));
  const largest = Math.max(...sizes) || 1;
  write(context, `${table.symbol} (${rows.length}, ${columns.length})`, left, top, {});
  columns.forEach((text, column) => {
    const right = left + label + (column + 1) * cell - PADDING;
    write(context, text, right, top + CELL_HEIGHT, { align: "right", color: COLORS.quiet, width: cell - 4 });
  });
  table.cells.forEach((cells, row) => {
    const y = top + CELL_HEIGHT * (row + 2);
    write(context, rows[row], left, y, { color: COLORS.quiet, width: label });
    cells.forEach((element, column) => {
      const x = left + label + column * cell;
      const isHidden = element.classList.contains("hidden");
      context.fillStyle = isHidden ? COLORS.panel : shade(table.values[row][column] / largest);
      context.fillRect(x + 1, y + 1, cell - 2, CELL_HEIGHT - 2);
      if (isHidden) hatch(context, x + 1, y + 1, cell - 2, CELL_HEIGHT - 2);
      write(context, element.textContent ?? "", x + cell - PADDING, y, { align: "right", color: isHidden ? COLORS.quiet : COLORS.ink });
    });
  });
}

/** Return the color of a cell: the larger the number, the more of its sign's color. @param {number} share from -1 to 1 */
function shade(share) {
  const full = share >= 0 ? COLORS.warm : COLORS.cool;
  const empty = [245, 246, 249];
  return `rgb(${full.map((part, index) => Math.round(empty[index] + (part - empty[index]) * Math.min(1, Math.abs(share)))).join(" ")})`;
}

/** @param {CanvasRenderingContext2D} context @param {number} x @param {number} y @param {number} width @param {number} height */
function hatch(context, x, y, width, height) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = COLORS.line;
  context.beginPath();
  for (let offset = -height; offset < width; offset += 6) {
    context.moveTo(x + offset, y);
    context.lineTo(x + offset + height, y + height);
  }
  context.stroke();
  context.restore();
}

/**
 * Write a line of text, with its top at `y`.
 * @param {CanvasRenderingContext2D} context @param {string} text @param {number} x @param {number} y
 * @param {{ font?: string, color?: string, align?: CanvasTextAlign, width?: number }} style
 */
function write(context, text, x, y, { font = FONT, color = COLORS.ink, align = "left", width }) {
  Object.assign(context, { font, fillStyle: color, textAlign: align, textBaseline: "middle" });
  context.fillText(text, x, y + CELL_HEIGHT / 2, width);
}
