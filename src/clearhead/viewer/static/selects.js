// Selects whose choice is kept in the address. Their options may arrive after the choice.

import { keepInAddress, writeAddress } from "clearhead/address.js";
import { element, make } from "clearhead/dom.js";

/** Choices whose options have not arrived yet, by the id of the select. @type {Map<string, string>} */
const wanted = new Map();

/** @param {any} select @param {string} value */
const hasOption = (select, value) => [...select.options].some((option) => option.value === value);

/** Set the options of a select or of a group in it, and keep the choice. @param {any} list @param {string[][]} options */
export function setOptions(list, options) {
  const listed = /** @type {HTMLOptionElement[]} */ ([...list.children]).map((option) => option.value);
  if (options.map(([value]) => value).join("\n") === listed.join("\n")) return;
  const select = list.closest("select");
  const chosen = wanted.get(select.id) ?? select.value;
  list.replaceChildren(...options.map(([value, text]) => make("option", { value, textContent: text })));
  select.value = hasOption(select, chosen) ? chosen : select.options[0]?.value;
}

/** Forget choices without an option, once all options have arrived. Such a choice came from an invalid address. */
export function forgetMissingChoices() {
  const missing = [...wanted].filter(([id, value]) => !hasOption(element(id), value));
  for (const [id] of missing) wanted.delete(id);
  if (missing.length) writeAddress();
}

/** Keep the choice of a select in the address. @param {string} id @param {() => void} changed follows every new choice */
export function keepChoice(id, changed) {
  const select = element(id);
  select.addEventListener("change", () => {
    wanted.delete(id);
    changed();
    writeAddress();
  });
  const restore = (/** @type {string} */ value) => {
    wanted.set(id, value);
    if (hasOption(select, value)) select.value = value;
    changed();
  };
  keepInAddress(id, () => wanted.get(id) ?? select.value, restore);
}
