// State shared by all parts of the page, and the events that connect them.
//
// A part subscribes with `on(event, listener)`, reads `state`, and sends requests with `ask(kind, payload)`. The live page
// (live.js) sends requests to the server; a report (report.js) answers them from its stored data. Both write the
// result into `state` and announce the event of the same name. "drawn" follows every change of the heatmap, "settings"
// every change of `settings`, and "theme" a change between light and dark. "fonts" follows the loading of a font. "statistics" follows some "thumbnails".

/**
 * @type {{ model: ModelPayload, head: HeadPayload | null, tokens: WindowPayload | null, cell: CellPayload | null,
 *   thumbnails: LayerPayload | null, top_tokens: TopTokensPayload | null, calculation: CalculationPayload | null,
 *   words: WordsPayload | null, row: RowPayload | null, next_tokens: NextTokensPayload | null,
 *   picture: TokenPicturePayload | null, search: SearchPayload | null, links: LinksPayload | null, compare: ComparePayload | null,
 *   compared_cell: ComparedCellPayload | null, media: MediaPayload | null, grid_weights: GridWeights | null,
 *   status: StatusPayload | null }}
 */
export const state = {
  model: /** @type {any} */ (null), // set before any part reads it
  head: null,
  tokens: null,
  cell: null,
  thumbnails: null,
  top_tokens: null,
  calculation: null,
  words: null,
  row: null,
  next_tokens: null,
  search: null,
  links: null,
  picture: null,
  compare: null,
  compared_cell: null,
  status: null,
  media: null,
  grid_weights: null,
};

/** Settings of the heatmap. */
export const settings = { reduce: "max", log: true, hide: false, weighted: false, palette: "viridis" };

/** @type {Map<string, ((detail?: any) => void)[]>} */
const listeners = new Map();

/** @param {string} event @param {(detail?: any) => void} listener */
export const on = (event, listener) => void listeners.set(event, [...(listeners.get(event) ?? []), listener]);

/** @param {string} event @param {any} [detail] */
export function announce(event, detail) {
  for (const listener of listeners.get(event) ?? []) listener(detail);
}

/** @type {(kind: string, payload: Record<string, any>) => void} */
let answerRequest = () => {};

/** @param {typeof answerRequest} handler receives all requests from now on */
export const connectRequests = (handler) => void (answerRequest = handler);

/** @param {string} kind @param {Record<string, any>} [payload] */
export const ask = (kind, payload = {}) => answerRequest(kind, payload);

/** Return the stack of the selected head. @returns {any} */
export const stackShown = () => state.model?.stacks.find((stack) => stack.name === state.head?.stack);

/** Return the visible window: row, row_end, key, key_end. */
export const windowShown = () => state.tokens?.window ?? [0, 1, 0, 1];

/** @param {"query" | "key"} side @param {number} index */
export function tokenAt(side, index) {
  const { tokens } = state;
  return tokens ? (side === "query" ? tokens.rows[index - tokens.row] : tokens.keys[index - tokens.key]) : undefined;
}

/** Return the token that a query's row writes; empty if it writes none. @param {number} query */
export const writtenAt = (query) => state.tokens?.written?.[query - state.tokens.row] ?? "";

/** Return the language of a side's tokens, if it is known. @param {"query" | "key"} side @returns {string | undefined} */
export const languageOf = (side) => stackShown()?.languages?.[side === "query" ? 0 : 1];

/** Return the text parameter of a request or an address; empty for the first listed text, which is the default. @returns {Record<string, any>} */
export function textAsked() {
  const { text, chosen } = state.model;
  return chosen === null ? { text } : chosen ? { given: chosen } : {};
}

/** Open another head of the same text. @param {string} id @param {Record<string, any>} [options] */
export const openHead = (id, options = {}) => ask("go", { ...textAsked(), head: id, ...options });
