// Calculation of the cell that is pointed at, from the texts of the cells it depends on.
const tablesOf = (section) => [...section.querySelectorAll("table")];
// a shortened table lists the index of each row or column that it shows, and -1 for a gap
const entriesOf = (table, axis) => (table.dataset[axis] ? table.dataset[axis].split(",").map(Number) : null);
const shownAt = (table, axis, index) => entriesOf(table, axis)?.indexOf(index) ?? index;
const indexOf = (table, axis, position) => entriesOf(table, axis)?.[position] ?? position;
const cellsIn = (row) => [...(row?.cells ?? [])].slice(1).filter((cell) => !cell.classList.contains("sum"));
const rowAt = (table, index) => table.tBodies[0].rows[shownAt(table, "rows", index)];
const cellAt = (table, row, column) => cellsIn(rowAt(table, row))[shownAt(table, "columns", column)];
const rowOf = (table, row) => cellsIn(rowAt(table, row));
const columnOf = (table, column) =>
  [...table.tBodies[0].rows].map((row) => cellsIn(row)[shownAt(table, "columns", column)]).filter(Boolean);
const cellsOf = (table) => [...table.tBodies[0].rows].flatMap(cellsIn);

function sourceCells(table, row, column) {
  const { marks, shift } = table.dataset;
  const shifted = column + Number(shift);
  if (marks === "row") return rowOf(table, row);
  if (marks === "column") return columnOf(table, shifted);
  if (marks === "all") return cellsOf(table);
  return [shifted < 0 ? undefined : cellAt(table, row, shifted)].filter(Boolean);
}

function clear() {
  for (const cell of document.querySelectorAll(".marked")) cell.classList.remove("marked");
  for (const line of document.querySelectorAll(".arithmetic")) line.textContent = "";
}

function explain(cell) {
  const table = cell.closest("table");
  const section = cell.closest("section");
  clear();
  const row = indexOf(table, "rows", cell.parentElement.rowIndex - 1);
  const column = indexOf(table, "columns", cell.cellIndex - 1);
  const operands = tablesOf(section).filter((other) => other.dataset.marks !== "result");
  const sources = operands.map((other) => sourceCells(other, row, column));
  for (const marked of [cell, ...sources.flat()]) {
    marked.classList.add("marked");
    marked.parentElement.cells[0].classList.add("marked");
    marked.closest("table").tHead.rows[0].cells[marked.cellIndex].classList.add("marked");
  }
  const line = section.querySelector(".arithmetic");
  if (line) line.textContent = arithmetic(section, operands, sources, cell);
}

// a long sum is abbreviated, but keeps the term of the selected cell
function shortened(terms, sign, pinned = 0) {
  if (terms.length <= 12) return terms.join(sign);
  const start = terms.slice(0, 8);
  const middle = pinned >= 8 && pinned < terms.length - 1 ? ["…", terms[pinned]] : [];
  return [...start, ...middle, "…", terms.at(-1)].join(sign);
}
const MASKED = "·";
const bracketed = (text) => (text.startsWith("−") ? `(${text})` : text);
const sumOf = (table, axis) => {
  const [, rows, columns] = table.closest("figure").querySelector(".shape").textContent.match(/\((\d+), (\d+)\)/);
  return Number(axis === "rows" ? rows : columns);
};

const nameOf = (table) => table.closest("figure").querySelector("[role=math]").getAttribute("aria-label");

function arithmetic(section, operands, sources, cell) {
  if (cell.dataset.note) return cell.dataset.note;
  const texts = sources.map((cells) => cells.map((other) => other.textContent));
  const [first = [], second = [], third = []] = texts;
  const sum = () => [[first[0], ...texts.slice(1).map(([text]) => bracketed(text))].join(" + ")];
  const left = {
    product: () => {
      // a masked weight adds 0
      const terms = first
        .map((text, index) => (text === "…" ? text : `${bracketed(text)} · ${bracketed(second[index])}`))
        .filter((_, index) => first[index] !== MASKED);
      if (!terms.length && !third.length) return "0, because the query attends to no key";
      const text = shortened(third.length ? [...terms, bracketed(third[0])] : terms, " + ");
      const gap = first.includes("…") ? ` (the sum of all ${sumOf(operands[0], "columns")} products)` : "";
      return [text, gap];
    },
    scaled: () => [`${first[0]} ${section.dataset.scaling}`],
    masked: sum,
    sum,
    softmax: () => {
      // a masked key adds 0
      const open = first.map((text, index) => ({ text, index })).filter(({ text }) => text !== "−∞");
      const powers = [...open.map(({ text }) => text), ...second].map((text) => (text === "…" ? text : `e^${bracketed(text)}`));
      const chosen = open.findIndex(({ index }) => index === cell.cellIndex - 1);
      if (chosen < 0) return open.length ? "0, because the mask hides this key" : "0, because the query attends to no key";
      const gap = first.includes("…") ? ` (the sum over all ${sumOf(operands[0], "columns")} keys)` : "";
      return [`${powers[chosen]} / (${shortened(powers, " + ", chosen)})`, gap];
    },
  }[section.dataset.how]?.();
  if (typeof left === "string") return left;
  if (left) return `${left[0]} ${cell.textContent.endsWith("∞") ? "=" : "≈"} ${cell.textContent}${left[1] ?? ""}`;
  const names = operands.filter((_, index) => sources[index].length).map(nameOf);
  return `computed from the marked numbers of ${names.join(" and ")}`;
}

function moveFrom(cell, key) {
  const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[key];
  if (!step) return false;
  const row = cell.closest("tbody").rows[cell.parentElement.rowIndex - 1 + step[0]];
  const next = cellsIn(row)[cell.cellIndex - 1 + step[1]];
  if (next) {
    cell.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }
  return true;
}

const isResult = (target) =>
  target instanceof Element && target.closest('table[data-marks="result"] tbody td:not(.gap, .sum), td[data-note]');
for (const kind of ["pointerover", "click", "focusin"]) {
  document.querySelector("main").addEventListener(kind, (event) => {
    const cell = isResult(event.target);
    if (cell) explain(cell);
  });
}
for (const table of document.querySelectorAll('table[data-marks="result"]')) cellsIn(table.tBodies[0].rows[0])[0].tabIndex = 0;
document.querySelector("main").addEventListener("keydown", (event) => {
  const cell = event.ctrlKey || event.metaKey || event.altKey ? null : event.target.closest("tbody td");
  if (cell && moveFrom(cell, event.key)) event.preventDefault();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") clear();
});
