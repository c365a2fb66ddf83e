// Start script of the index: progress of each page, and the page to continue with.

import { countRight, forgetAnswers } from "clearhead/course_store.js";
import { startTheme } from "clearhead/course_theme.js";

/** @type {HTMLElement[]} */
const entries = [...document.querySelectorAll("[data-questions]")].map((entry) => /** @type {HTMLElement} */ (entry));

function show() {
  let right = 0;
  let count = 0;
  /** @type {HTMLElement | undefined} */
  let unfinished;
  for (const entry of entries) {
    const questions = (entry.dataset.questions ?? "").split(" ").filter(Boolean);
    const done = countRight(entry.dataset.page ?? "", questions);
    right += done;
    count += questions.length;
    if (done < questions.length) unfinished ??= entry;
    const mark = entry.querySelector(".done");
    if (mark) mark.textContent = done === 0 ? "" : done === questions.length ? "✓ all answered" : `${done} of ${questions.length} answered`;
  }
  const progress = document.getElementById("progress");
  if (progress) progress.textContent = right === 0 ? "" : `${right} of ${count} questions answered`;
  const start = /** @type {HTMLAnchorElement | null} */ (document.getElementById("continue"));
  const link = (unfinished ?? entries[0])?.querySelector("a");
  if (!start || !link) return;
  start.href = link.href;
  start.textContent = right === 0 ? "Start with page 1" : `Continue: ${link.textContent}`;
}

document.getElementById("forget")?.addEventListener("click", () => {
  forgetAnswers();
  show();
  const status = document.getElementById("forgotten");
  if (status) status.textContent = "All answers are forgotten.";
});
window.addEventListener("pageshow", show); // also after the back button
startTheme();
show();
