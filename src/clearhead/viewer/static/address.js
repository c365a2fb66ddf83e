// The URL fragment: text, head, window and cell.

import { headId } from "clearhead/format.js";
import { ask, on, stackShown, state, textAsked, windowShown } from "clearhead/state.js";

/** Return the request that the fragment describes. */
export function fromAddress() {
  const parameters = new URLSearchParams(location.hash.slice(1));
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
  return `#${parts}`;
}

const IN_NOTEBOOK = location.protocol === "about:"; // a srcdoc frame, which has no URL to update
let isFollowing = true; // while following an address, which adds no history entry
/** Timer of a pending update. @type {ReturnType<typeof setTimeout> | undefined} */
let pending;

/** Return whether an update of the address is pending. */
export const isAddressPending = () => pending !== undefined;

// debounced; a change of text, head or window adds a history entry, a change of the cell does not
function writeAddress() {
  clearTimeout(pending);
  pending = setTimeout(() => {
    pending = undefined;
    const address = toAddress();
    const withoutCell = (/** @type {string} */ hash) => hash.replace(/&cell=[^&]*/, "");
    const isStep = withoutCell(address) !== withoutCell(location.hash) && !isFollowing;
    if (address !== location.hash && !IN_NOTEBOOK) history[isStep ? "pushState" : "replaceState"](null, "", address);
    isFollowing = false;
  }, 300);
}

window.addEventListener("popstate", () => {
  clearTimeout(pending);
  pending = undefined;
  isFollowing = true;
  ask("go", fromAddress());
});
for (const event of ["tokens", "cell"]) on(event, writeAddress);
