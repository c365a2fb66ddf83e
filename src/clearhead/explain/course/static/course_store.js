// Answers of the learner, kept in localStorage. Without it, they last as long as the page is open.

const KEY = "clearhead-course";

/** @typedef {{ right: boolean, given: string }} Answer */
/** @typedef {Record<string, Record<string, Answer>>} Answers page -> question -> answer */

/** @type {Answers | undefined} all answers, if the browser did not store the last one */
let unsaved;

/** @returns {Answers} */
function answers() {
  if (unsaved) return unsaved;
  try {
    const stored = JSON.parse(localStorage.getItem(KEY) ?? "{}");
    if (stored && typeof stored === "object" && !Array.isArray(stored)) return stored;
  } catch {
    // blocked by the browser, or not JSON
  }
  return {};
}

/** Return the answer to a question, if there is one. @param {string} page @param {string} question @returns {Answer | undefined} */
export const readAnswer = (page, question) => answers()[page]?.[question];

/** @param {string} page @param {string} question @param {Answer} answer */
export function saveAnswer(page, question, answer) {
  const all = answers();
  all[page] = { ...all[page], [question]: answer };
  unsaved = store(KEY, JSON.stringify(all)) ? undefined : all;
}

export function forgetAnswers() {
  unsaved = store(KEY, "{}") ? undefined : {};
}

/** Count the questions of a page that are answered right. @param {string} page @param {string[]} questions */
export const countRight = (page, questions) => questions.filter((question) => readAnswer(page, question)?.right).length;

/** @param {string} key */
export function readSetting(key) {
  try {
    return localStorage.getItem(`${KEY}-${key}`);
  } catch {
    return null;
  }
}

/** @param {string} key @param {string} value */
export const saveSetting = (key, value) => store(`${KEY}-${key}`, value);

/** Return whether the browser stored a value. @param {string} key @param {string} value */
function store(key, value) {
  try {
    localStorage.setItem(key, value);
    return true;
  } catch {
    return false; // full, or blocked by the browser
  }
}
