// Heads of the layer whose lines are drawn, at most 12, each with a color.

import { fromAddress, keepInAddress, writeAddress } from "clearhead/address.js";
import { headId } from "clearhead/format.js";
import { announce, on, stackShown, state } from "clearhead/state.js";

export const MAX_HEADS_ON = 12; // number of colors that stay apart, also with color blindness

/** Heads that the user turned on. Undefined until the first choice: the selected head alone. @type {Set<number> | undefined} */
let chosen;
let lastHead = "";

/** Return the number of heads of the layer. */
export const headCount = () => (state.head ? stackShown().heads[state.head.layer] : 0);

/** Return the heads that are turned on, in ascending order. */
export function headsOn() {
  if (!state.head) return [];
  const heads = chosen ?? [state.head.head];
  return [...heads].filter((head) => head < headCount()).sort((one, other) => one - other);
}

/** Return the color slot of each head that is turned on: its index modulo 12, or the next free slot. @returns {Map<number, number>} */
export function colorSlots() {
  const slots = new Map();
  const taken = new Set();
  for (const head of headsOn()) {
    let slot = head % MAX_HEADS_ON;
    while (taken.has(slot)) slot = (slot + 1) % MAX_HEADS_ON;
    taken.add(slot);
    slots.set(head, slot);
  }
  return slots;
}

/** Turn a head on or off. @param {number} head */
export function toggleHead(head) {
  const heads = new Set(headsOn());
  if (!heads.delete(head)) heads.add(head);
  turnOn(heads);
}

/** Turn on all heads of the layer, or the 12 from the selected head on. */
export function turnOnAll() {
  const first = headCount() > MAX_HEADS_ON ? (state.head?.head ?? 0) : 0;
  turnOn(Array.from({ length: Math.min(MAX_HEADS_ON, headCount()) }, (_, offset) => (first + offset) % headCount()));
}

/** Turn on some heads; the last 12, if there are more. @param {Iterable<number>} heads */
export function turnOn(heads) {
  chosen = new Set([...heads].slice(-MAX_HEADS_ON));
  announce("heads");
}

/** Apply the heads of an address, such as "0.3.5"; "none" turns off all heads. @param {string} value */
function restore(value) {
  if (value === addressValue() || !/^(|none|\d{1,5}(\.\d{1,5}){0,11})$/.test(value)) return;
  chosen = value ? new Set(value === "none" ? [] : value.split(".").map(Number)) : undefined;
  lastHead = String(fromAddress().head ?? ""); // opening it does not change the choice
  if (state.head) announce("heads");
}

const addressValue = () => (chosen ? [...chosen].join(".") || "none" : "");
keepInAddress("lines", addressValue, restore);
on("heads", writeAddress);

// a head that is opened is turned on; a new text keeps the choice
on("head", () => {
  if (!state.head || headId(state.head) === lastHead) return;
  lastHead = headId(state.head);
  if (!chosen?.size) chosen = undefined;
  else chosen = new Set([...[...chosen].filter((head) => head !== state.head?.head), state.head.head].slice(-MAX_HEADS_ON));
});
