"use strict";
// Navigation between the steps of a page, by buttons, menu, keys, scrolling and address.
let sections = [...document.querySelectorAll("section")];
const select = document.getElementById("steps");
const single = document.getElementById("single");
const bar = document.querySelector("nav");
const inNotebook = location.protocol === "about:"; // in an iframe with srcdoc, whose address cannot change
let current = 0;
let jumpedAt = 0;

function show(index, scroll = true) {
  if (!sections.length) return; // a live page has not written them yet
  jumpedAt = performance.now();
  current = Math.max(0, Math.min(sections.length - 1, index));
  sections.forEach((section, position) => section.classList.toggle("current", position === current));
  select.value = sections[current].id;
  if (scroll) {
    if (!inNotebook) history.replaceState(null, "", "#" + sections[current].id + stateInAddress());
    sections[current].scrollIntoView();
    sections[current].focus({ preventScroll: true });
  }
}

// an edited calculation is part of the address, after the step
const stateInAddress = () => location.hash.match(/[#&]layer=.*$/)?.[0].replace("#", "&") ?? "";

function toggleSingle() {
  const on = document.body.classList.toggle("single");
  single.setAttribute("aria-pressed", String(on));
  show(current);
}

function toggleTheme() {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const shown = root.style.colorScheme || (dark ? "dark" : "light");
  root.style.colorScheme = shown === "dark" ? "light" : "dark";
}

function fromAddress() {
  const id = location.hash.slice(1).split("&")[0];
  const index = sections.findIndex((section) => section.id === id);
  show(index < 0 ? 0 : index, index >= 0);
}

document.getElementById("previous").addEventListener("click", () => show(current - 1));
document.getElementById("next").addEventListener("click", () => show(current + 1));
document.getElementById("theme").addEventListener("click", toggleTheme);
single.addEventListener("click", toggleSingle);
select.addEventListener("change", () => show(select.selectedIndex));
window.addEventListener("hashchange", fromAddress);
if (inNotebook) {
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]'); // would load the notebook itself
    if (!link) return;
    event.preventDefault();
    show(sections.findIndex((section) => "#" + section.id === link.getAttribute("href")));
  });
}

// scrolling selects the step at the top of the window, except right after a jump to a step
function follow() {
  if (document.body.classList.contains("single") || performance.now() - jumpedAt < 500) return;
  const top = bar.getBoundingClientRect().bottom + 40;
  const below = sections.findIndex((section) => section.getBoundingClientRect().bottom > top);
  if (below >= 0 && below !== current) show(below, false);
}
window.addEventListener("scroll", follow, { passive: true });

const measure = () => document.documentElement.style.setProperty("--bar", bar.offsetHeight + "px");
window.addEventListener("resize", measure);
// a printed table cannot scroll, so a table wider than the page is scaled down
const PAGE_WIDTH = 680;
window.addEventListener("beforeprint", () => {
  for (const box of document.querySelectorAll(".scroll")) {
    box.style.setProperty("--fit", Math.min(1, PAGE_WIDTH / box.firstElementChild.offsetWidth));
  }
});

// presentation remotes send these keys; with all steps on the page they keep their function, scrolling
const singleKeys = {
  PageDown: () => show(current + 1),
  PageUp: () => show(current - 1),
  Home: () => show(0),
  End: () => show(sections.length - 1),
};
const keys = {
  ArrowRight: () => show(current + 1),
  ArrowLeft: () => show(current - 1),
  n: () => show(current + 1),
  p: () => show(current - 1),
  o: toggleSingle,
  t: toggleTheme,
};
document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("select, input, textarea, summary")) return;
  if (event.key.startsWith("Arrow") && event.target.closest(".scroll")) return; // the table itself scrolls
  const act = keys[event.key] ?? (document.body.classList.contains("single") ? singleKeys[event.key] : undefined);
  if (act) {
    act();
    event.preventDefault();
  }
});

// a live page replaces its sections when the calculation gets other steps
document.addEventListener("stepschange", () => {
  const id = sections[current]?.id;
  sections = [...document.querySelectorAll("section")];
  show(Math.max(0, sections.findIndex((section) => section.id === id)), false);
});
measure();
fromAddress();
