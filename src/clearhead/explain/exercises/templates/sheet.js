"use strict";
const exercise = JSON.parse(document.getElementById("exercise").textContent);
const student = document.getElementById("student");
const statusLine = document.getElementById("status");
const tables = exercise.answers.map(({ id }) => document.querySelector(`#${id} table.answers`));
const rowsOf = (table) => [...table.tBodies[0].rows].map((row) => [...row.querySelectorAll("input")]);
const grids = tables.map(rowsOf);
const inputs = grids.flat(2);

// -- numbers as written ------------------------------------------------------------------------------------------

const LARGEST = 1e6;
const tidy = (text) => text.replace(/\s+/g, "").replace(/[−–]/g, "-").replace(/,/g, ".");
const isBlank = (text) => ["", "_", "___"].includes(tidy(text));
const isInfinite = (text) => /^-(inf|infinity|∞)$/i.test(tidy(text));
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,3})?$/i;
const isNumber = (text) => NUMBER.test(tidy(text)) && Math.abs(Number(tidy(text))) <= LARGEST;
const takesInfinity = (input) => input.closest("section").id.startsWith("masked");

function isReadable(input) {
  if (isBlank(input.value) || isNumber(input.value)) return true;
  return takesInfinity(input) && (isInfinite(input.value) || (NUMBER.test(tidy(input.value)) && Number(tidy(input.value)) < 0));
}

// TOML has no number such as .5 or 07; such a cell keeps its text in quotes, and `clearhead mark` reads it
const TOML_NUMBER = /^-?((0|[1-9]\d*)(\.\d+)?|inf)$/;
const quoted = (text) => JSON.stringify(text.replace(/\p{C}/gu, " "));
function cellText(input) {
  const text = isInfinite(input.value) ? "-inf" : tidy(input.value);
  return TOML_NUMBER.test(text) ? text : quoted(isBlank(text) ? "_" : text);
}

// -- keeping and saving -------------------------------------------------------------------------------------------

const storageKey = `clearhead-exercise-${exercise.id}`;

function keep() {
  try {
    localStorage.setItem(storageKey, JSON.stringify([student.value, ...inputs.map((input) => input.value)]));
  } catch {
    statusLine.textContent = "This browser does not keep the answers. Save them before you close the page.";
  }
}

function restore() {
  try {
    const kept = JSON.parse(localStorage.getItem(storageKey) ?? "null");
    if (!Array.isArray(kept) || kept.length !== inputs.length + 1) return;
    [student, ...inputs].forEach((input, index) => (input.value = String(kept[index])));
    inputs.forEach(showValidity);
  } catch {
    // nothing is kept
  }
}

function answersFile() {
  const claims = exercise.answers.map(({ step, head }, index) => {
    const rows = grids[index].map((row) => `  [${row.map(cellText).join(", ")}],\n`).join("");
    return `[[claims]]\nstep = "${step}"\n${head === null ? "" : `head = ${head}\n`}values = [\n${rows}]\n\n`;
  });
  return exercise.before + quoted(student.value.trim()) + exercise.after + claims.join("");
}

function save() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([answersFile()], { type: "application/toml" }));
  link.download = `${student.value.trim().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "") || "answers"}.toml`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  const missing = inputs.filter((input) => isBlank(input.value)).length;
  statusLine.textContent = `Saved ${link.download}${missing ? `; ${missing} of ${inputs.length} cells are blank` : ""}.`;
}

function clearAll() {
  if (!confirm("Clear all answers on this page?")) return;
  for (const input of inputs) input.value = "";
  inputs.forEach(showValidity);
  removeVerdicts();
  keep();
}

function showValidity(input) {
  input.setAttribute("aria-invalid", String(!isReadable(input)));
  input.title = isReadable(input) ? "" : "expected a number such as 0.25";
}

function removeVerdicts() {
  for (const cell of document.querySelectorAll("td[data-verdict]")) {
    delete cell.dataset.verdict;
    cell.firstElementChild.title = "";
  }
  for (const points of document.querySelectorAll(".points")) points.textContent = points.dataset.possible;
}

for (const input of [student, ...inputs]) {
  input.addEventListener("input", () => {
    if (input !== student) removeVerdicts();
    keep();
  });
}
for (const input of inputs) {
  input.addEventListener("change", () => showValidity(input));
  input.addEventListener("keydown", move);
}
document.getElementById("save").addEventListener("click", save);
document.getElementById("clear").addEventListener("click", clearAll);

// -- moving between cells -----------------------------------------------------------------------------------------

function move(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const input = event.currentTarget;
  if (event.key === "Enter") {
    event.preventDefault();
    return go(inputs[inputs.indexOf(input) + (event.shiftKey ? -1 : 1)]);
  }
  const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  if (!step || event.shiftKey) return;
  // inside a number the left and right keys move the caret
  const whole = input.selectionEnd - input.selectionStart === input.value.length;
  if (step[1] < 0 && !whole && input.selectionStart > 0) return;
  if (step[1] > 0 && !whole && input.selectionEnd < input.value.length) return;
  const grid = grids.find((rows) => rows.flat().includes(input));
  const row = grid.findIndex((cells) => cells.includes(input));
  event.preventDefault();
  go(grid[row + step[0]]?.[grid[row].indexOf(input) + step[1]]);
}

function go(input) {
  input?.focus();
  input?.select();
}

const navigation = document.querySelector("nav");
const measure = () => document.documentElement.style.setProperty("--bar", navigation.offsetHeight + "px");
window.addEventListener("resize", measure);
// a printed table cannot scroll, so a table wider than the page is scaled down
const PAGE_WIDTH = 680;
window.addEventListener("beforeprint", () => {
  for (const box of document.querySelectorAll(".scroll")) {
    box.style.setProperty("--fit", Math.min(1, PAGE_WIDTH / box.firstElementChild.offsetWidth));
  }
});
measure();
restore();
