// -- the calculation of one query: q, k, products, scores, softmax, contributions ----------------------------------------

function showCalculation() {
  const found = pageState.calculation;
  const { terms, query, scale, softcap, lse, others, output } = found;
  const steps = [
    query === null ? undefined : ["q · k", (term) => term.product],
    query === null ? undefined : [`× ${number(scale)}`, (term) => term.scaled],
    softcap === null ? undefined : [`softcap ${number(softcap)}`, (term) => term.capped],
    terms.some((term) => term.capped !== null && term.score !== term.capped && Math.abs(term.score - term.capped) > 1e-4) ? ["+ bias, mask", (term) => term.score] : undefined,
    query === null ? ["score", (term) => term.score] : undefined,
    [`− ${number(lse)}, exp`, (term) => term.weight, others],
    output === null ? undefined : ["‖weight · v‖", (term) => Math.hypot(...term.contribution)],
  ].filter((step) => step !== undefined);
  const about = element("calculation-note");
  about.replaceChildren(
    "Query ", literal(found.token), `: ${query === null ? "only scores were recorded;" : "the dot product of q with each key is scaled, and"} weight = exp(score − ${number(lse)}), where ${number(lse)} is the log-sum-exp of the row.`,
  );
  const head = make("tr", {}, make("th", { scope: "col", textContent: "key" }), ...steps.map(([name]) => make("th", { scope: "col", className: "number", textContent: name })));
  const rows = terms.map((term) =>
    make("tr", { className: term.key === pageState.cell?.key ? "chosen" : "" }, make("th", { scope: "row" }, `${term.key} `, literal(term.token)), ...steps.map(([, value]) => make("td", { className: "number", textContent: number(value(term)) }))),
  );
  const remaining = make("tr", {}, make("th", { scope: "row", textContent: "all other keys" }), ...steps.map(([, , rest]) => make("td", { className: "number", textContent: number(rest) })));
  element("terms").replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows, remaining));
  showVectors(found);
}

function showVectors({ query, terms, output, token }) {
  element("vectors-heading").hidden = query === null && output === null;
  const line = (name, word, vector, after = "") =>
    vector && make("tr", {}, make("th", { scope: "row" }, `${name} `, word === undefined ? "" : literal(word)), ...vector.map((value) => make("td", { className: "number", textContent: fixed(value) })), make("td", { className: "number", textContent: after }));
  const chosen = terms.find((term) => term.key === pageState.cell?.key) ?? terms[0];
  const rows = [line("q", token, query), ...terms.map((term) => line("k", term.token, term.vector))];
  if (query && chosen) rows.push(line("q × k", chosen.token, query.map((value, place) => value * chosen.vector[place]), `sum ${number(chosen.product)}`));
  rows.push(...terms.map((term) => line("weight · v", term.token, term.contribution)), line("Σ weight · v", undefined, output));
  element("vectors").replaceChildren(make("tbody", {}, ...rows.filter(Boolean)));
}
