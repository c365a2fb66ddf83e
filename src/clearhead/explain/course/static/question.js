// Questions of a page: a choice, a number, or a goal in a live part or widget. Right answers are kept.

import { countRight, readAnswer, saveAnswer } from "clearhead/course_store.js";
import { parseNumber } from "clearhead/number_format.js";

/**
 * @typedef {{ part: string, matrix: string, row: number, column: number, key: string, tolerance: number,
 *   bounds: { at_least?: number, at_most?: number, equals?: number } }} Goal
 * @typedef {{ id: string, kind: string, right?: number, answer?: number, tolerance?: number, goals?: Goal[] }} QuestionData
 * @typedef {{ form: HTMLFormElement, data: QuestionData }} Question
 */

const RIGHT = "Right.";
const page = document.getElementById("progress")?.dataset.page ?? "";

/**
 * Start every question of the page.
 * @returns {(name: string, handle: any) => void} function to call when a live part or widget is mounted
 */
export function startQuestions() {
  const questions = [...document.querySelectorAll("form.question")].map((element) => {
    const form = /** @type {HTMLFormElement} */ (element);
    return { form, data: JSON.parse(form.dataset.question ?? "{}") };
  });
  for (const question of questions) startQuestion(question);
  const ids = questions.map(({ data }) => data.id);
  const showProgress = () => {
    const progress = document.getElementById("progress");
    if (progress) progress.textContent = ids.length ? `${countRight(page, ids)} of ${ids.length} answered` : "";
  };
  document.addEventListener("answered", showProgress);
  showProgress();
  return (name, handle) => {
    for (const question of questions) if (question.data.goals?.[0].part === name) watchGoals(question, handle);
  };
}

/** @param {Question} question */
function startQuestion({ form, data }) {
  const earlier = readAnswer(page, data.id);
  if (data.kind === "choice") {
    form.addEventListener("change", (event) => {
      const { value } = /** @type {HTMLInputElement} */ (event.target);
      judge({ form, data }, Number(value) === data.right, value, "Not this one. Try another.");
    });
    if (earlier) for (const input of form.querySelectorAll("input")) input.checked = input.value === earlier.given;
  }
  const entry = form.querySelector("input");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (data.kind === "number" && entry) judgeNumber({ form, data }, entry.value);
  });
  if (earlier && data.kind === "number" && entry) entry.value = earlier.given;
  if (earlier?.right) showVerdict(form, "right", RIGHT);
}

/** @param {Question} question @param {string} given */
function judgeNumber(question, given) {
  const { answer = 0, tolerance = 0 } = question.data;
  const value = parseNumber(given);
  if (!Number.isFinite(value)) {
    showVerdict(question.form, "wrong", "Type a number, such as 0.25.");
    return;
  }
  // the tolerance is written in decimals, so its binary value may be a little too small
  const right = Math.abs(value - answer) <= tolerance + 1e-12;
  judge(question, right, given.trim(), value < answer ? "Not yet: the answer is larger." : "Not yet: the answer is smaller.");
}

/**
 * Check the goals whenever their part changes.
 * @param {Question} question
 * @param {any} handle of a live part (`calculation`) or of a widget (`value`)
 */
function watchGoals({ form, data }, handle) {
  const { goals = [] } = data;
  const check = () => {
    if (form.dataset.state === "right") return;
    const missed = goals.find((goal) => !isReached(goal, goalValue(goal, handle)));
    judge({ form, data }, !missed, "", missed ? progressText(missed, goals.length > 1, handle) : "");
  };
  handle.onChange(check);
  check();
}

/** @param {Goal} goal @param {any} handle @returns {number | undefined} */
function goalValue(goal, handle) {
  if (goal.matrix) return handle.calculation().matrices.get(goal.matrix)?.values[goal.row - 1]?.[goal.column - 1];
  const value = handle.value();
  return goal.key ? value[goal.key] : value;
}

/** Say how far a goal is from being reached. @param {Goal} goal @param {boolean} named whether the text names the matrix @param {any} handle */
function progressText(goal, named, handle) {
  const value = goalValue(goal, handle);
  if (value === undefined) return "The calculation has no such cell in this setting.";
  const cell = named ? `row ${goal.row}, column ${goal.column} of ${handle.calculation().matrices.get(goal.matrix).symbol} is ` : "";
  return `Now ${cell}${rounded(value)}; the goal is ${goalText(goal)}.`;
}

/** @param {Goal} goal @param {number | undefined} value */
function isReached({ bounds, tolerance }, value) {
  if (value === undefined) return false;
  const { at_least = -Infinity, at_most = Infinity, equals = value } = bounds;
  return value >= at_least && value <= at_most && Math.abs(value - equals) <= tolerance;
}

/** @param {Goal} goal */
function goalText({ bounds }) {
  const texts = [];
  if (bounds.at_least !== undefined) texts.push(`at least ${rounded(bounds.at_least)}`);
  if (bounds.at_most !== undefined) texts.push(`at most ${rounded(bounds.at_most)}`);
  if (bounds.equals !== undefined) texts.push(rounded(bounds.equals));
  return texts.join(" and ");
}

/** Return a number with three digits; a small one keeps its exponent, because it is not 0. @param {number} value */
const rounded = (value) => (value !== 0 && Math.abs(value) < 0.0005 ? value.toExponential(0) : String(Number(value.toFixed(3)))).replaceAll("-", "−");

/** @param {Question} question @param {boolean} right @param {string} given @param {string} wrong */
function judge({ form, data }, right, given, wrong) {
  showVerdict(form, right ? "right" : data.kind === "goal" ? "open" : "wrong", right ? RIGHT : wrong);
  // a goal that is not reached yet is not an answer, and a right answer is not taken back
  if (!right && (data.kind === "goal" || readAnswer(page, data.id)?.right)) return;
  saveAnswer(page, data.id, { right, given });
  document.dispatchEvent(new Event("answered"));
}

/** @param {HTMLFormElement} form @param {"right" | "wrong" | "open"} state @param {string} text */
function showVerdict(form, state, text) {
  form.dataset.state = state;
  const verdict = form.querySelector(".verdict");
  if (verdict) verdict.textContent = text;
  const why = /** @type {HTMLElement | null} */ (form.querySelector(".why"));
  if (why) why.hidden = state !== "right";
}
