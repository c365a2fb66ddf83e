// Start script of a page: questions, live parts and widgets.

import { create } from "clearhead/elements.js";
import { startQuestions } from "clearhead/question.js";
import { startTheme } from "clearhead/course_theme.js";

/**
 * Mount the live part or widget of an element.
 * @param {HTMLElement} element
 * @returns {Promise<[string, any]>} its name and its handle
 */
async function mountPart(element) {
  const { name = "", module = "" } = element.dataset;
  const config = JSON.parse(document.getElementById(`config-${name}`)?.textContent ?? "{}");
  const code = await import(module);
  return [name, element.classList.contains("live") ? code.mountLive(element, config) : code.mount(element, config)];
}

startTheme();
const elements = [...document.querySelectorAll(".part")].map((element) => /** @type {HTMLElement} */ (element));
const watchPart = startQuestions();
for (const element of elements) {
  mountPart(element)
    .then(([name, handle]) => {
      element.dataset.ready = "true";
      element.querySelector(".settings")?.setAttribute("open", ""); // a part of a page has few controls
      if (handle) watchPart(name, handle);
    })
    .catch((error) => {
      console.error(error);
      element.append(create("p", { class: "warning", role: "alert" }, "This part did not start. Reload the page, or try another browser."));
    });
}
