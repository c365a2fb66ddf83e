// Types of the data that the server or a report sends to the page. The Python side is in `_payloads.py` and `report/_page.py`.

/** Stack of a model: its sizes, and for reports the layout of its stored arrays. */
interface StackPayload {
  name: string;
  heads: number[]; // number of heads of each layer
  groups: number[]; // number of key heads of each layer
  queries: number;
  keys: number;
  sampled: number; // number of sampled queries of a long text, or 0
  hides: string[]; // texts of the first sink keys
  hidden: number[]; // sink keys
  languages: [query: string, key: string] | null; // if they are known
  value_weighted: boolean; // the norms of the values are known
}

interface StoredStack extends StackPayload {
  tokens: [number, number, number | null]; // indices of the token lists of queries, keys and written tokens
  same: boolean; // self-attention
  layers: { entropy: number | null; labels: string[]; statistics: Record<string, number | null>; received: number }[][];
  bins: [number, number];
  kept: number;
  places: number[] | null; // stored queries, or null if all are stored
  bar: number;
  cells: boolean; // every bin is a single cell
  masks: (number | null)[]; // index of the mask of each layer, or null if no key is masked or the mask is not stored
  top: number;
  floor: number;
  hidden_bins: number[]; // bins that contain sink keys
  hidden_bars: number[]; // bars of received attention that contain sink keys
}

/** Settings that change the shown values of a stack. */
interface ShownOptions {
  hide: boolean; // sink keys are set to 0
  weighted: boolean; // by the values
}

interface ModelPayload {
  name: string;
  stacks: StackPayload[];
  labeled: boolean;
  columns: [name: string, heading: string, tooltip: string][]; // of the statistics
  chosen: number | null; // index of the given text, or null for a typed text
  text: string;
  input: string | null; // the text that the model read
  output: string | null; // the text that an encoder–decoder wrote
  given: string[];
  runs: boolean;
  compared?: string | null; // name of the model of the recording to compare with
  longest: number;
  notes: string[];
}

interface StoredModel extends ModelPayload {
  stacks: StoredStack[];
  first: string;
  view: string; // fragment of the view to open on
}

interface HeadPayload {
  stack: string;
  layer: number;
  head: number;
}

interface WindowPayload {
  window: [number, number, number, number]; // row, row_end, key, key_end
  row: number;
  rows: string[];
  written: string[] | null; // token that each row writes, empty if unknown; null if rows write none
  key: number;
  keys: string[];
}

interface CellPayload {
  head?: string; // not in reports
  query: number;
  key: number;
  query_token: string;
  key_token: string;
  written: string; // token that the query's row writes; empty if it writes none
  weight?: number; // undefined if a report does not store it
  score?: number;
  share?: number | null; // ‖v · W_O‖ of the key as a share of the head's largest, if it is known
}

/** Weights of the selected query for the keys of the window. */
interface RowPayload {
  head: string;
  query: number;
  start: number; // first key
  row: ArrayLike<number>;
  shares: ArrayLike<number> | null; // of the values, by key
}

/** Tokens of both sides and the weights between them, for all heads of a layer. */
interface WordsPayload {
  stack: string;
  layer: number;
  heads: number;
  queries: number[]; // indices of the tokens
  query_tokens: string[];
  written: string[] | null; // token that each query's row writes, empty if unknown; null if rows write none
  keys: number[];
  key_tokens: string[];
  weights: ArrayLike<number>; // [heads, queries, keys]
  shares: ArrayLike<number> | null; // of the values [heads, keys]
}

interface NextTokensPayload {
  stack: string;
  query: number;
  tokens: [text: string, probability: number][];
}

interface ThumbnailPayload {
  entropy: number | null;
  labels: string[]; // most specific first
  statistics: Record<string, number | null>; // by the names of the model's `columns`
  rows: number;
  keys: number;
  levels: ArrayBuffer | Uint8Array; // 0 only where masked
}

interface LayerPayload {
  stack: string;
  layer: number;
  hide: boolean; // sink keys are masked
  weighted: boolean; // by the values, in stacks where they are known
  heads: ThumbnailPayload[];
}

type TopToken = [index: number, text: string, weight: number];
interface TopTokens {
  everywhere?: TopToken[];
  heads: [layer: number, head: number, tokens: TopToken[]][];
}
interface TopTokensPayload {
  query: string;
  written: string; // token that the query's row writes; empty if it writes none
  key: string;
  same: boolean;
  cell: [query: number, key: number]; // the selected cell
  hide: boolean; // sink keys are left out of `from`
  weighted: boolean; // by the values; heads then have different units, and no means
  among?: number; // a report of a longer text: value-weighted are these many keys with the largest weights
  nearest?: number; // stored query that a report lists instead of the selected one
  from: TopTokens;
  to?: TopTokens; // absent in reports of longer texts, which do not store columns
}

/** Answer to `{kind: "search", axis, text}`. */
interface SearchPayload {
  stack: string;
  axis: "queries" | "keys";
  text: string;
  ranges: [start: number, end: number][]; // tokens of the first 1,000 hits
  count: number; // of all hits
}

/** Answer to `{kind: "links", query?, hide?, min_distance?}`; the default query is the last token. */
interface LinksPayload {
  stack: string;
  query: number;
  token: string;
  hide: boolean;
  links: { layer: number; head: number; key: number; token: string; weight: number; distance: number | null }[];
}

/** Answer to `{kind: "picture", query?, key?, hide?}`: the top key of one query in every head, and its weights on `key`. */
interface TokenPicturePayload {
  stack: string;
  query: number;
  token: string;
  key: number;
  key_token: string;
  hide: boolean;
  weighted: boolean;
  layers: ([key: number, token: string, weight: number] | null)[][];
  weights: number[][];
}

interface RowTerm {
  key: number;
  token: string;
  vector: number[] | null;
  product: number | null;
  scaled: number | null;
  capped: number | null;
  score: number;
  weight: number;
  contribution: number[] | null;
  projected_norm?: number | null; // length of the contribution after W_O, if W_O is known
}
interface CalculationPayload {
  token: string;
  query: number[] | null;
  scale: number;
  softcap: number | null;
  lse: number;
  terms: RowTerm[];
  others: number;
  output: number[] | null;
  projected?: number[] | null; // output through W_O, if it is known
  position: number; // index of the query
  key: number; // index of the selected key
  explained: boolean; // /explain.html can work out this row
}

/** Pinned head, and its difference from the shown head: shown − pinned. */
interface ComparePayload {
  stack: string;
  layer: number;
  head: number;
  window: number[];
  row: number;
  key: number;
  bins: number[];
  shape: number[];
  values: ArrayLike<number>;
  cellsOf?: (bins: ArrayLike<number>) => Float32Array | undefined; // a report: the cells of a short window, NaN if masked
  shown: string; // head from which the pinned one is subtracted
  difference: ArrayLike<number> | null;
  reason: string; // why there is no difference
  queries: string[];
  keys: string[];
}
interface ComparedCellPayload {
  shown: string;
  query: number;
  key: number;
  weights: number[]; // of the shown and of the pinned head; empty if their shapes differ
}

/** Pictures and sounds of a recording, and the grid of each stack that has one (`_media_payload.py`). */
interface MediaPayload {
  pictures: PicturePayload[];
  sounds: SoundPayload[];
  stacks: Record<string, GridPayload>;
}
interface PicturePayload {
  url: string; // data: URL of a PNG
  width: number;
  height: number;
}
interface SoundPayload {
  seconds: number;
  low: number[]; // envelope
  high: number[];
}
interface PatchesRegion {
  start: number;
  rows: number;
  columns: number;
  picture: number | null;
  block: number;
}
interface FramesRegion {
  start: number;
  count: number;
  seconds: number; // of one frame
  sound: number | null;
}
interface GridPayload {
  side: "query" | "key"; // whose tokens are drawn as a grid
  same: boolean; // self-attention
  regions: (PatchesRegion | FramesRegion)[];
  chips: [position: number, text: string, time: number | null][]; // tokens of the other side outside of a grid
}
/** Weights over a grid, of one token of the other side. */
interface GridWeights {
  stack: string;
  layer: number;
  head: number;
  index: number;
  weights: ArrayLike<number>;
}
interface BoardEvents {
  point: (position: number | undefined) => void;
  choose: (position: number) => void;
}
interface Board {
  element: HTMLElement;
  positions: number[]; // of the tokens of the grid
  has: (position: number) => boolean;
  name: (position: number) => string;
  mark: (position: number | undefined) => void;
  paint: (weights: ArrayLike<number>, most: number, time?: number) => void;
}

interface StatusPayload {
  text: string;
  busy: boolean;
  percent: number | null;
  error: boolean;
}

/** Bin or cell of the heatmap, with half-open ranges of queries and keys. */
interface Bin {
  query: number;
  queryEnd: number;
  key: number;
  keyEnd: number;
  value: number;
  score?: number;
  share?: number | null;
  query_token?: string;
  key_token?: string;
  written?: string; // token that the query's row writes
  preview?: boolean; // a sketch of rows that are still being computed
  sampled?: boolean; // a report of a long text: computed from some queries only
  shades?: { digits: number; least: number }; // a report: precision, and the smallest weight that a shade can represent
  announced?: boolean; // the selected cell, which is read out even if it is hidden
}

declare const Bokeh: any;
interface Window {
  Bokeh?: any;
}
