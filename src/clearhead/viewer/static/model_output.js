// What the model did, as text: the translation with its source, and the most probable next tokens at the selected query.

import { element, literal, make } from "clearhead/dom.js";
import { percent } from "clearhead/format.js";
import { languageOf, on, state } from "clearhead/state.js";

/** Return a text with the name of its language. @param {string} text @param {string} [language] */
const passage = (text, language) => make("span", { className: "passage" }, ...(language ? [make("abbr", { textContent: language.toUpperCase() }), " "] : []), literal(text, language));

function showOutput() {
  const { input, output, stacks, runs } = state.model;
  const cross = stacks.find(({ name }) => name === "cross");
  const [target, source] = cross?.languages ?? [];
  const isShown = output !== null || (input !== null && !runs); // the text box has the text of a model that runs
  const parts = [...(input === null ? [] : [passage(input, source)]), ...(output === null ? [] : [make("span", { textContent: "→", className: "quiet" }), passage(output, target)])];
  element("output").replaceChildren(...(isShown ? parts : []));
}

function showNextTokens() {
  const { cell, next_tokens: predicted } = state;
  // the predictions of another stack stay in the state until those of the shown one, which may be none, arrive
  const shown = predicted?.query === cell?.query && predicted?.stack === state.head?.stack ? predicted : null;
  if (!shown || !cell) return element("next").replaceChildren();
  const tokens = shown.tokens.map(([text, probability]) => {
    const token = make("span", { className: "key" }, literal(text, languageOf("query")), ` ${percent(probability)}`);
    token.style.setProperty("--share", probability.toFixed(3));
    return token;
  });
  element("next").replaceChildren("After ", make("strong", {}, literal(cell.query_token, languageOf("query"))), " the model expects ", ...tokens);
}

on("model", showOutput);
for (const event of ["next_tokens", "cell"]) on(event, showNextTokens);
