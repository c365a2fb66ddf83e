// The calculation of one query: q, k, products, scores, softmax, contributions, and the output through W_O.

import { element, literal, make } from "clearhead/dom.js";
import { fixed, headId, significant } from "clearhead/format.js";
import { on, state, textAsked } from "clearhead/state.js";

const MAX_COLUMNS = 1024; // of a shown vector
const MIN_BIAS = 1e-4; // smaller differences between score and product are rounding

/** @typedef {[title: string, value: (term: RowTerm) => number | null, others?: number]} Column */

/** @param {CalculationPayload} calculation @returns {Column[]} */
function columnsOf({ terms, query, scale, softcap, lse, others, output }) {
  const isBiased = terms.some(({ capped, score }) => capped !== null && score !== capped && Math.abs(score - capped) > MIN_BIAS);
  /** @type {(Column | false)[]} */
  const columns = [
    query !== null && ["q · k", (term) => term.product],
    query !== null && [`× ${significant(scale)}`, (term) => term.scaled],
    softcap !== null && [`softcap ${significant(softcap)}`, (term) => term.capped],
    isBiased && ["+ bias, mask", (term) => term.score],
    query === null && ["score", (term) => term.score],
    [`− ${significant(lse)}, exp`, (term) => term.weight, others],
    output !== null && ["‖weight · v‖", (term) => Math.hypot(...(term.contribution ?? []))],
    terms.some(({ projected_norm: norm }) => typeof norm === "number") && ["‖weight · v · W_O‖", (term) => term.projected_norm ?? null],
  ];
  return columns.filter((column) => column !== false);
}

function showCalculation() {
  const { calculation } = state;
  if (!calculation) return;
  const columns = columnsOf(calculation);
  const lse = significant(calculation.lse);
  const start = calculation.query === null ? "only scores were recorded;" : "the dot product of q with each key is scaled, and";
  element("calculation-note").replaceChildren(
    "Query ", literal(calculation.token), `: ${start} weight = exp(score − ${lse}), where ${lse} is the log-sum-exp of the row.`,
  );
  const cell = (/** @type {number | null | undefined} */ value) => make("td", { className: "number", textContent: significant(value) });
  const titles = columns.map(([title]) => make("th", { scope: "col", className: "number", textContent: title }));
  const head = make("tr", {}, make("th", { scope: "col", textContent: "key" }), ...titles);
  const rows = calculation.terms.map((term) => {
    const key = make("th", { scope: "row" }, `${term.key} `, literal(term.token));
    return make("tr", { className: term.key === calculation.key ? "chosen" : "" }, key, ...columns.map(([, value]) => cell(value(term))));
  });
  const remaining = make("tr", {}, make("th", { scope: "row", textContent: "all other keys" }), ...columns.map(([, , others]) => cell(others)));
  element("terms").replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows, remaining));
  showOutput(calculation);
  showVectors(calculation);
}

/** Say what the head adds to the residual stream, and link to the page that works the row out. @param {CalculationPayload} calculation */
function showOutput({ output, projected, terms, token, position, key, explained }) {
  const largest = terms.reduce((best, term) => ((term.projected_norm ?? 0) > (best.projected_norm ?? 0) ? term : best), terms[0]);
  const reason = output ? "W_O of this model is not known, so the calculation ends at the output of the head." : "";
  const parts = projected
    ? [
        "Output: W_O maps Σ weight · v to the vector that this head adds to the residual stream of ", literal(token),
        `. Its length is ${significant(Math.hypot(...projected))}.`,
        ...(largest?.projected_norm ? [" The largest part comes from ", literal(largest.token), `, with length ${significant(largest.projected_norm)}.`] : []),
      ]
    : [reason];
  element("calculation-output").replaceChildren(...parts);
  const link = element("explain-link");
  link.hidden = !explained || !state.head;
  if (link.hidden || !state.head) return;
  link.href = `/explain.html?${new URLSearchParams({ head: headId(state.head), cell: `${position}-${key}`, ...textAsked() })}`;
}

/** @param {CalculationPayload} calculation */
function showVectors({ query, terms, output, projected, token }) {
  element("vectors-heading").hidden = query === null && output === null;
  const line = (/** @type {string} */ name, /** @type {string | undefined} */ word, /** @type {number[] | null} */ vector, after = "") => {
    if (!vector) return undefined;
    const cells = vector.slice(0, MAX_COLUMNS).map((value) => make("td", { className: "number", textContent: fixed(value) }));
    const heading = make("th", { scope: "row" }, `${name} `, word === undefined ? "" : literal(word));
    return make("tr", {}, heading, ...cells, make("td", { className: "number", textContent: after }));
  };
  const chosen = terms.find((term) => term.key === state.cell?.key) ?? terms[0];
  const rows = [line("q", token, query), ...terms.map((term) => line("k", term.token, term.vector))];
  if (query && chosen?.vector) {
    const products = query.map((value, index) => value * (chosen.vector?.[index] ?? 0));
    rows.push(line("q × k", chosen.token, products, `sum ${significant(chosen.product)}`));
  }
  rows.push(...terms.map((term) => line("weight · v", term.token, term.contribution)), line("Σ weight · v", undefined, output));
  rows.push(line("Σ weight · v · W_O", undefined, projected ?? null));
  const width = Math.max(0, ...[query, output, projected].map((vector) => vector?.length ?? 0));
  const shown = width > MAX_COLUMNS ? `The first ${MAX_COLUMNS.toLocaleString("en")} of up to` : "Up to";
  element("vectors-note").textContent = width ? `${shown} ${width.toLocaleString("en")} numbers in a row; scroll sideways to read them all.` : "";
  element("vectors").replaceChildren(make("tbody", {}, ...rows));
}

on("calculation", showCalculation);
