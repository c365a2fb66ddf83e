// The URL fragment: text, head, window and cell, and the settings that other parts register.

import { headId } from "clearhead/format.js";
import { ask, on, stackShown, state, textAsked, windowShown } from "clearhead/state.js";

const STEPS = ["text", "given", "head", "rows", "keys"]; // changes of these add a history entry; all others replace it

/** Settings in the fragment, by name. @type {Map<string, { read: () => string, write: (value: string) => void, initial: string }>} */
const kept = new Map();

/**
 * Keep a setting in the address. Its value at this call is the default, which is left out.
 * @param {string} name parameter of the fragment
 * @param {() => string} read returns the current value
 * @param {(value: string) => void} write applies a value from an address, and ignores an invalid one
 */
export const keepInAddress = (name, read, write) => void kept.set(name, { read, write, initial: read() });

/** Apply the settings of a fragment. A setting that it does not contain gets its default. */
export function restoreSettings(fragment = location.hash) {
  const parameters = new URLSearchParams(fragment.slice(1));
  for (const [name, { write, initial }] of kept) write(parameters.get(name) ?? initial);
}

/** Return the request that a fragment describes. */
export function fromAddress(fragment = location.hash) {
  const parameters = new URLSearchParams(fragment.slice(1));
  const pair = (/** @type {string} */ name) => {
    const value = parameters.get(name) ?? "";
    return /^\d+-\d+$/.test(value) ? value.split("-").map(Number) : undefined;
  };
  const request = {
    head: parameters.get("head"), rows: pair("rows"), keys: pair("keys"), cursor: pair("cell"),
    text: parameters.get("text"), given: parameters.get("given"),
  };
  return Object.fromEntries(Object.entries(request).filter(([, value]) => value !== null && value !== undefined));
}

/** Return the fragment of what is shown. */
export function toAddress() {
  if (!state.head) return "";
  const { queries, keys } = stackShown();
  const [row, rowEnd, key, keyEnd] = windowShown();
  const parts = new URLSearchParams({ head: headId(state.head) });
  if (rowEnd - row < queries) parts.set("rows", `${row}-${rowEnd}`);
  if (keyEnd - key < keys) parts.set("keys", `${key}-${keyEnd}`);
  if (state.cell) parts.set("cell", `${state.cell.query}-${state.cell.key}`);
  for (const [name, value] of Object.entries(textAsked())) parts.set(name, String(value));
  for (const [name, { read, initial }] of kept) if (read() !== initial) parts.set(name, read());
  return `#${parts}`;
}

/** True in a notebook, where the page is a srcdoc frame without a URL. */
export const IN_NOTEBOOK = location.protocol === "about:";
let isFollowing = true; // while following an address, which adds no history entry
let isTyping = false; // while a text is typed, its versions share one history entry
/** Timer of a pending update. @type {ReturnType<typeof setTimeout> | undefined} */
let pending;

/** Return whether an update of the address is pending. */
export const isAddressPending = () => pending !== undefined;

/** Update the address after a short pause. */
export function writeAddress() {
  clearTimeout(pending);
  pending = setTimeout(() => {
    pending = undefined;
    const address = toAddress();
    const steps = (/** @type {string} */ hash) => STEPS.map((name) => new URLSearchParams(hash.slice(1)).get(name)).join("\n");
    const isStep = steps(address) !== steps(location.hash) && !isFollowing && !isTyping;
    if (address && address !== location.hash && !IN_NOTEBOOK) history[isStep ? "pushState" : "replaceState"](null, "", address);
    isFollowing = false;
  }, 300);
}

window.addEventListener("popstate", () => {
  clearTimeout(pending);
  pending = undefined;
  isFollowing = true;
  ask("go", fromAddress());
  restoreSettings();
});
on("typed", ({ again }) => (isTyping = again));
for (const event of ["tokens", "cell"]) on(event, writeAddress);
// settings of a followed address change before its head arrives, and would write the head that is still shown
on("settings", () => isFollowing || writeAddress());
