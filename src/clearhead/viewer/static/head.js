// The heading of the selected head: its name, size, entropy and labels.

import { element, literal } from "clearhead/dom.js";
import { fixed, headId, headTitle } from "clearhead/format.js";
import { thumbnailOf } from "clearhead/grid.js";
import { isWeighted } from "clearhead/heatmap.js";
import { on, stackShown, state } from "clearhead/state.js";

function headShown() {
  if (!state.head) return;
  const { queries, keys, hides, value_weighted: isKnown } = stackShown();
  const title = headTitle(state.head);
  element("head-heading").textContent = title;
  element("hide-label").title = "Hide attention to the first token and to special tokens (attention sinks)";
  element("hidden").replaceChildren(...hides.flatMap((/** @type {string} */ token) => [" ", literal(token)]));
  element("hide").disabled = !hides.length;
  if (element("weighted")) {
    element("weighted").disabled = !isKnown;
    element("weighted-label").title = isKnown
      ? "Show ‖weight · v · W_O‖, the size of what a key adds to the output, as a share of the largest ‖v · W_O‖"
      : "This recording does not have the values and the output projection that this needs";
  }
  describeHead();
  element("chart").setAttribute("aria-label", `Attention heatmap of ${title}: ${queries} queries by ${keys} keys. Arrow keys move by one cell, with Shift by ten. Home and End go to the ends of the row, with Control to the corners. Plus and minus zoom, Q the queries and K the keys only. 0 shows the whole matrix. N and P open the next and the previous head.`);
}

function describeHead() {
  if (!state.head) return;
  const { queries, keys, sampled } = stackShown();
  const rows = state.head.stack === "cross" ? "Each query is the last token read. Its row shows the source tokens used to predict the next token." : "";
  const scope = isWeighted() ? "Value-weighted. Entropy, received attention and statistics are those of the weights." : "";
  element("head-note").textContent = [rows, scope].filter(Boolean).join(" ");
  const payload = thumbnailOf(headId(state.head));
  const entropy = payload && payload.entropy !== null ? `entropy ${fixed(payload.entropy)} nats${sampled ? " (sampled)" : ""}` : "";
  element("head-facts").textContent = [`${queries} × ${keys} tokens`, entropy, ...(payload?.labels ?? [])].filter(Boolean).join(" · ");
}

on("head", headShown);
for (const event of ["thumbnails", "settings"]) on(event, describeHead);
