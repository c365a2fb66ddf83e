// The layer in the address of the page, as in "#weights-1&layer=…", so that a link carries the numbers.

import { readState, stateText } from "clearhead/state_link.js";

export const IN_NOTEBOOK = location.protocol === "about:"; // in an iframe with srcdoc, whose address cannot change
const WRITE_MS = 300; // browsers limit how often a page may change its address

/** @param {string} name @param {string} hash @returns {string | undefined} the text of a layer in an address */
const stateIn = (name, hash) =>
  hash
    .replace(/^#/, "")
    .split("&")
    .find((part) => part.startsWith(`${name}=`))
    ?.slice(name.length + 1);

/** Return an address with another layer, or without one. @param {string} name @param {string} state */
function addressWith(name, state) {
  const parts = location.hash.replace(/^#/, "").split("&");
  const kept = parts.filter((part) => part && !part.startsWith(`${name}=`));
  const all = state ? [...kept, `${name}=${state}`] : kept;
  return location.href.replace(/#.*/, "") + (all.length ? `#${all.join("&")}` : "");
}

/** Return the link that opens this page with a layer. @param {string} name @param {Layer} start @param {Layer} layer */
export const linkTo = (name, start, layer) => addressWith(name, stateText(start, layer));

/**
 * Open the layer of the address, and keep the address up to date.
 * @param {string} name @param {Layer} start @param {import("clearhead/mount_live.js").Live} live @param {(text: string) => void} say
 */
export function followAddress(name, start, live, say) {
  if (IN_NOTEBOOK) return;
  let written = "";
  function read() {
    const state = stateIn(name, location.hash) ?? "";
    if (state === written) return;
    const { layer, message } = readState(start, state);
    if (message) return say(message);
    written = state;
    live.set(layer);
  }
  let timer = 0;
  live.onChange(() => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      written = stateText(start, live.layer());
      history.replaceState(null, "", addressWith(name, written));
    }, WRITE_MS);
  });
  addEventListener("hashchange", read);
  read();
}
