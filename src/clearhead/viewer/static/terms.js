// The words of the page in plain English, for its tooltips and its glossary. tests/test_glossary.py compares them with docs.

/**
 * @typedef {object} Term
 * @property {string} name
 * @property {string} entry heading in docs/glossary.md
 * @property {string} text at most 25 words
 * @property {string[]} [forms] other forms of the name
 * @property {boolean} [exact] matches a whole label only, because the word is also used in other senses
 */

/** @type {Term[]} in alphabetical order */
export const TERMS = [
  { name: "bins", entry: "Bin", forms: ["bin"], text: "Rectangles of neighboring cells, each drawn as one pixel, if there are more cells than pixels. Max shows their largest weight, mean their average." },
  { name: "broad", entry: "Broad head", exact: true, text: "This head spreads its attention almost evenly over the keys." },
  { name: "cross-attention", entry: "Cross-attention", text: "Attention from one text to another, such as from each word of a translation to the words of its source." },
  { name: "decoder", entry: "Stack", text: "The layers that write the output. Each token attends only to itself and to earlier tokens." },
  { name: "delimiter", entry: "Delimiter head", text: "A head that gives more than half of its attention to special tokens, such as the end of a sentence." },
  { name: "distance", entry: "Distance", exact: true, text: "The mean number of tokens between a query and the keys that it attends to." },
  { name: "duplicate token", entry: "Duplicate-token head", forms: ["duplicate"], exact: true, text: "This head attends to an earlier copy of the same token." },
  { name: "encoder", entry: "Stack", text: "The layers that read the input. Each token may attend to every token of the text." },
  { name: "entropy", entry: "Entropy", text: "How widely a query spreads its attention: 0 for a single key, ln n for n equal keys. The unit is nats." },
  { name: "first token", entry: "First-token head", exact: true, text: "This head gives more than 30 % of its attention to the first token, whatever that token is." },
  { name: "head", entry: "Head", forms: ["heads"], text: "One of several attention calculations that run side by side in a layer. Each can look for something else." },
  { name: "induction", entry: "Induction head", exact: true, text: "This head attends to the token after an earlier copy of the current token, and so continues repeated text." },
  { name: "key", entry: "Key", forms: ["keys"], text: "A token that a query can attend to. In the map, each column is one key." },
  { name: "label", entry: "Label", forms: ["labels"], text: "The name of what a head does on this text, given if its score is above a threshold." },
  { name: "layer", entry: "Layer", forms: ["layers"], text: "One stage of the model. It has several heads, and it reads the result of the layer before." },
  { name: "linear", entry: "Color scale", exact: true, text: "The color follows the weight itself, so that only large weights stand out." },
  { name: "log", entry: "Color scale", exact: true, text: "The color follows the logarithm of the weight, so that small weights can be told apart too." },
  { name: "log-sum-exp", entry: "Log-sum-exp (lse)", text: "The logarithm of the sum of exp(score) over a row. A weight is exp(score − log-sum-exp), so that the row sums to 1." },
  { name: "nats", entry: "Nat", forms: ["nat"], text: "The unit of entropy with natural logarithms. Equal attention to 20 keys has about 3 nats." },
  { name: "next token", entry: "Next-token head", forms: ["next"], exact: true, text: "This head gives more than 40 % of its attention to the token after the query." },
  { name: "offset", entry: "Positional head", exact: true, text: "The most frequent distance from a query to its most attended key: −1 is the token before." },
  { name: "positional", entry: "Positional head", exact: true, text: "For 9 of 10 queries, this head attends most to the key at the same offset, whatever the words are." },
  { name: "previous token", entry: "Previous-token head", forms: ["previous"], exact: true, text: "This head gives more than 40 % of its attention to the token before the query." },
  { name: "query", entry: "Query", forms: ["queries"], text: "The token that attends to others. In the map, each row is one query." },
  { name: "received", entry: "Received", exact: true, text: "The attention that a key gets from all queries together: the sum of its column." },
  { name: "residual stream", entry: "Residual stream", text: "The vector of each token that all layers read and add to." },
  { name: "sampled", entry: "Sampled", text: "Computed from some evenly spaced queries only, because the text is long. Each computed row is exact." },
  { name: "score", entry: "Scores", forms: ["scores"], text: "How well a query matches a key, before the softmax turns the scores of a row into weights." },
  { name: "self", entry: "Self head", exact: true, text: "This head gives more than 40 % of its attention to the position of the query itself." },
  { name: "sharp", entry: "Sharp head", exact: true, text: "This head gives almost all attention of each query to very few keys." },
  { name: "sink", entry: "Sink", forms: ["sinks"], text: "A token that gets attention whatever its content is, usually the first token or a special token." },
  { name: "softcap", entry: "Softcap", text: "A smooth limit that some models put on scores." },
  { name: "special token", entry: "Special token", forms: ["special tokens"], text: "A token that the tokenizer adds, such as the mark for the end of a text." },
  { name: "spread", entry: "Spread", exact: true, text: "Entropy divided by its maximum: 0 for a single key, 1 for equal attention to all keys." },
  { name: "syntactic relation", entry: "Relation", forms: ["relation", "relations"], text: "A link between two words, such as from a verb to its object. The label names the relation and its direction." },
  { name: "token", entry: "Token", forms: ["tokens"], text: "A word or a piece of a word: the unit that a model reads and writes." },
  { name: "value-weighted", entry: "Value-weighted attention", forms: ["value weighted"], text: "The size of what each key adds to the output: weight times value, mapped by W_O. A large weight on a small value adds little." },
  { name: "W_O", entry: "Output projection (W_O)", text: "The matrix that maps the output of the heads into the residual stream." },
  { name: "weight", entry: "Attention weights", forms: ["weights"], text: "The share of a query's attention that a key gets, from 0 to 1. A row sums to 1." },
];

/** Terms by their forms in lower case. */
const BY_FORM = new Map(TERMS.flatMap((term) => [term.name, ...(term.forms ?? [])].map((form) => [form.toLowerCase(), term])));

/** @param {string} form @returns {Term | undefined} */
export const termNamed = (form) => BY_FORM.get(form.toLowerCase());

/** Return the term of a head's label, which may contain an offset or the name of a relation. @param {string} label */
export function termOfLabel(label) {
  const text = label.trim();
  if (/^[^\s]+: [^→]+ → [^→]+$/.test(text)) return termNamed("relation"); // such as "amod: dependent → head"
  return termNamed(text.replace(/ [+−]?\d+$/, ""));
}

const escaped = (/** @type {string} */ text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
const forms = [...BY_FORM].filter(([, term]) => !term.exact).map(([form]) => form).sort((one, other) => other.length - one.length);
/** Matches any term in running text. */
export const ANY_TERM = new RegExp(`(?<![\\p{L}\\p{N}_-])(?:${forms.map(escaped).join("|")})(?![\\p{L}\\p{N}_-])`, "giu");
