// Where the last token looks: its strongest links over all heads, without sinks and its neighbors.

import { element, literal, make } from "clearhead/dom.js";
import { around } from "clearhead/find.js";
import { headId, significant } from "clearhead/format.js";
import { isWeighted } from "clearhead/heatmap.js";
import { ask, on, openHead, stackShown, state } from "clearhead/state.js";

const MAX_LISTED = 6; // links after the first
const READABLE_TOKENS = 512; // a longer text is zoomed to the link
const NEAR_TOKENS = 64; // length of its window

let isAsked = false; // the answer opens a head
/** Stack of the last request. @type {string | undefined} */
let asked;

/** Return the distance from which links count: neighbors are left out, more of them in a long text. */
const nearest = () => (stackShown().keys > READABLE_TOKENS ? NEAR_TOKENS : 2);

function askLast() {
  if (!state.head) return;
  const { name, queries } = stackShown();
  isAsked = true;
  asked = name;
  const { links } = state;
  if (links && links.stack === name && links.query === queries - 1) return showLinks(); // Bokeh sends no equal answer again
  element("links").hidden = false;
  element("links").replaceChildren(make("p", { className: "quiet", textContent: "Reading all heads …" }));
  ask("links", { hide: true, min_distance: nearest() });
}

/** @param {number} query @param {LinksPayload["links"][0]} link */
function open(query, { layer, head, key }) {
  const { name, queries, keys } = stackShown();
  const isLong = Math.max(queries, keys) > READABLE_TOKENS;
  const window = isLong ? { rows: around(query, NEAR_TOKENS, queries), keys: around(key, NEAR_TOKENS, keys) } : {};
  openHead(headId({ stack: name, layer, head }), { cursor: [query, key], ...window });
}

/** @param {number | null} distance */
function distanceText(distance) {
  if (distance === null) return "";
  if (distance === 0) return ", itself";
  const size = Math.abs(distance).toLocaleString("en");
  return `, ${size} ${size === "1" ? "token" : "tokens"} ${distance > 0 ? "back" : "ahead"}`;
}

/** @param {string} token a token may be punctuation, which would look like a part of the sentence */
const quoted = (token) => make("q", {}, literal(token));

/** @param {LinksPayload["links"][0]} link */
const weightText = ({ weight }) => (weight >= 0.01 ? weight.toFixed(2) : significant(weight, 2));

function showLinks() {
  const { links: answer } = state;
  if (!answer || !isAsked || answer.stack !== state.head?.stack) return;
  isAsked = false;
  const { query, token, links } = answer;
  const [first, ...others] = links;
  element("links").hidden = false;
  if (!first) return element("links").replaceChildren(make("p", {}, "The last token, ", quoted(token), ", has no strong link to a token farther back."));
  const sentence = make("p", {}, "The last token, ", quoted(token), `: head ${first.layer}.${first.head} puts ${weightText(first)} on `, quoted(first.token), `${distanceText(first.distance)}.`);
  const listed = others.slice(0, MAX_LISTED).map((link) => {
    const button = make("button", { type: "button", className: "place" }, `${link.layer}.${link.head}: `, quoted(link.token), ` ${weightText(link)}${distanceText(link.distance)}`);
    button.addEventListener("click", () => open(query, link));
    return make("li", {}, button);
  });
  const left = first.distance === null ? "Sinks are left out." : `Sinks and tokens nearer than ${nearest()} are left out.`;
  sentence.append(" ", make("span", { className: "quiet", textContent: isWeighted() ? `${left} By weight, not value-weighted.` : left }));
  element("links").replaceChildren(sentence, make("ol", {}, ...listed));
  open(query, first);
}

on("links", showLinks);
on("model", () => (isAsked = false)); // the server stops reading the former text
on("head", () => {
  const isOther = asked !== state.head?.stack;
  if (isOther) isAsked = false;
  if (isOther || (!state.links && !isAsked)) element("links").hidden = true;
});
element("last-token").addEventListener("click", askLast);
