// -- the report's page: answers requests from the stored data instead of a server -------------------------------------------

const LINES = 48; // longest side for which lines between tokens are drawn
const NAMED = 40; // most tokens on an axis
const READ = 512; // longest side of a window whose tokens are shown
let entropy, received; // bar charts along the sides of the heatmap
let shown; // stored data of the current head
let cell; // the selected cell; reset when the stack changes

const answers = { go, window: zoom, cursor: select, settings: setPalette, theme: setTheme };
const ask = (kind, payload = {}) => answers[kind](payload);

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

let opening = 0;
async function go({ head, rows, keys, cursor: wanted }) {
  const place = thumbs.has(head) ? head : pageState.head ? `${pageState.head.stack}.${pageState.head.layer}.${pageState.head.head}` : FACTS.first;
  const { stack: name, layer, head: number } = thumbs.get(place);
  const turn = ++opening;
  const found = (await layerKept(name, layer))[number];
  if (turn !== opening) return; // another head was selected in the meantime
  shown = found;
  const stack = stackNamed(name);
  if (pageState.head?.stack !== name) cell = undefined;
  const few = Math.max(stack.queries, stack.keys) <= LINES;
  pageState.head = { stack: name, layer, head: number, ...(few ? { queries: texts[stack.tokens[0]], keys: texts[stack.tokens[1]] } : {}) };
  headArrived();
  for (const [range, length] of [[chart.y_range, stack.queries], [chart.x_range, stack.keys]]) range.setv({ bounds: null, min_interval: null }), range.setv({ start: 0, end: length });
  drawMap();
  zoom({ rows, keys });
  for (const [range, length] of [[chart.y_range, stack.queries], [chart.x_range, stack.keys]]) range.setv({ bounds: [0, length], min_interval: Math.min(4, length) });
  const [query, key] = wanted ?? (cell ? [cell.query, cell.key] : strongest(stack));
  select({ query, key });
}

// the largest stored weight, with sink keys scaled down
function strongest(stack) {
  const hidden = new Set(stack.hidden);
  let best = [0, 0, -1];
  for (let at = 0; at < shown.topWeights.length; at++) {
    const key = shown.topKeys[at];
    const weight = HALVES[shown.topWeights[at]] * (hidden.has(key) ? 0.01 : 1);
    const row = Math.floor(at / stack.top);
    if (weight > best[2]) best = [stack.places ? stack.places[row] : row, key, weight];
  }
  return best;
}

// -- the heatmap and its profiles ---------------------------------------------------------------------------------------------

function drawMap() {
  const stack = stackShown();
  const values = shown.values(settings.reduce);
  const most = values.reduce((one, other) => Math.max(one, other), 0);
  const ends = { LogColorMapper: { low: stack.floor, high: 1 }, LinearColorMapper: { low: 0, high: Math.max(most, 1e-6) } };
  for (const mapper of mappers()) mapper.setv(ends[mapper.type]);
  const [rows, keys] = stack.bins;
  const { ndarray } = Bokeh.require("core/util/ndarray");
  const image = ndarray(values.map((weight) => weight || NaN), { dtype: "float32", shape: [shown.rows, shown.keys] });
  // a shade covers a range of weights: 3% with 500 keys, 6% with a million
  const shades = stack.cells ? undefined : { digits: 2, least: stack.floor ** (254 / 255) };
  sources[1].data = {
    image: [image], scores: [[]], x: [0], y: [0], dw: [shown.keys * keys], dh: [shown.rows * rows], rows: [rows], keys: [keys], exact: [true], shades: [shades], sampled: [Boolean(stack.sampled)],
  };
  const bars = (figure, range, starts, ends, value) => {
    figure.renderers[0].data_source.data = { start: starts, end: ends, value };
    range.setv({ start: 0, end: 1.05 * value.reduce((one, other) => Math.max(one, other), 0) || 1 });
  };
  const across = Array.from({ length: Math.ceil(stack.keys / stack.bar) + 1 }, (_, at) => Math.min(stack.keys, stack.bar * at));
  bars(received, received.y_range, across.slice(0, -1), across.slice(1), shown.receipts());
  const down = edgesBetween(stack);
  bars(entropy, entropy.x_range, down.slice(0, -1), down.slice(1), shown.entropies());
  drawn();
}

// each stored query is drawn up to halfway to its neighbors
function edgesBetween({ places, queries }) {
  if (!places) return Array.from({ length: queries + 1 }, (_, at) => at);
  return [0, ...places.slice(1).map((place, at) => (places[at] + 1 + place) / 2), queries];
}

function zoom({ rows, keys }) {
  const stack = stackShown();
  const fitted = (wanted, length) => {
    const [low, high] = [...(wanted ?? [0, length])].sort((one, other) => one - other);
    const start = clamp(Math.floor(low), 0, length - 1);
    return [start, clamp(Math.ceil(high), start + 1, length)];
  };
  const [row, rowEnd] = fitted(rows, stack.queries);
  const [key, keyEnd] = fitted(keys, stack.keys);
  chart.y_range.setv({ start: rowEnd, end: row });
  chart.x_range.setv({ start: key, end: keyEnd });
  moved([row, rowEnd, key, keyEnd]);
}

function panned() {
  const { queries, keys } = stackShown();
  const inside = (low, high, length) => [clamp(Math.floor(low + 1e-6), 0, length - 1), clamp(Math.ceil(high - 1e-6), 1, length)];
  moved([...inside(chart.y_range.end, chart.y_range.start, queries), ...inside(chart.x_range.start, chart.x_range.end, keys)]);
}

function moved([row, rowEnd, key, keyEnd]) {
  const stack = stackShown();
  const inside = (side, start, end) => (end - start <= READ ? texts[stack.tokens[side]].slice(start, end) : []);
  pageState.tokens = { window: [row, rowEnd, key, keyEnd], row, rows: inside(0, row, rowEnd), key, keys: inside(1, key, keyEnd) };
  nameTicks(chart.left[0], row, rowEnd, pageState.tokens.rows, 0);
  nameTicks(chart.above[0], key, keyEnd, pageState.tokens.keys, Math.PI / 2);
  rowOfCell();
  showTokens();
  fillTable();
  writeAddress();
}

// PlainText, because Bokeh renders strings such as $$x$$ as TeX; bidi isolates keep right-to-left tokens apart
function nameTicks(axis, start, end, tokens, upright) {
  const { BasicTicker, FixedTicker, NumeralTickFormatter, PlainText } = Bokeh.Models;
  if (end - start > NAMED) {
    axis.setv({ ticker: new BasicTicker(), major_label_overrides: new Map(), formatter: new NumeralTickFormatter({ format: "0,0" }), major_label_orientation: 0 });
    return;
  }
  const clipped = (text) => ([...text].length > 14 ? `${[...text].slice(0, 13).join("")}…` : text);
  const labels = tokens.map((text, at) => [start + at + 0.5, new PlainText({ text: `\u2068${clipped(text)}\u2069` })]);
  axis.setv({ ticker: new FixedTicker({ ticks: labels.map(([place]) => place) }), major_label_overrides: new Map(labels), major_label_orientation: upright });
}

// -- a cell ------------------------------------------------------------------------------------------------------------------

function select({ query, key }) {
  const stack = stackShown();
  cell = { query: clamp(query, 0, stack.queries - 1), key: clamp(key, 0, stack.keys - 1) };
  chart.renderers.find((renderer) => renderer.name === "cursor").data_source.data = { x: [cell.key + 0.5], y: [cell.query + 0.5] };
  pageState.cell = { ...cell, query_token: textOf(stack, "query", cell.query), key_token: textOf(stack, "key", cell.key), weight: weightAt(stack) };
  rowOfCell();
  sayCell();
  showTokens();
  writeAddress();
  showTopTokensOfCell(stack);
}

// the weight of the cell itself, if it is stored; not that of its bin
function weightAt(stack) {
  if (stack.cells) return binAt(cell.key + 0.5, cell.query + 0.5).value;
  const { query, tops } = largestOf(shown, stack, cell.query);
  return query === cell.query ? tops.find(([key]) => key === cell.key)?.[2] : undefined;
}

// the weights of the selected query for the keys of the window
function rowOfCell() {
  if (!pageState.cell || !stackShown().cells) return;
  const [, , key, keyEnd] = windowShown();
  pageState.cell.start = key;
  pageState.cell.row = Array.from({ length: keyEnd - key }, (_, at) => binAt(key + at + 0.5, pageState.cell.query + 0.5).value);
}

async function showTopTokensOfCell(stack) {
  const { query, key } = cell;
  const kept = await Promise.all(stack.heads.map((_, layer) => layerKept(stack.name, layer)));
  if (cell?.query !== query || cell?.key !== key || stack !== stackShown()) return;
  const heads = kept.flatMap((layer, number) => layer.map((own, head) => [number, head, own]));
  const from = heads.map(([layer, head, own]) => [layer, head, largestOf(own, stack, query).tops.slice(0, 5)]);
  pageState.top_tokens = { query: textOf(stack, "query", query), key: textOf(stack, "key", key), same: stack.same, from: { heads: strongestFirst(from) } };
  if (stack.cells) {
    const [size, rows] = [stack.keys, Array.from({ length: stack.queries })];
    const maps = heads.map(([layer, head, own]) => [layer, head, own.values("max")]);
    const column = (values) => rows.map((_, row) => values[row * size + key]);
    const best = (values, side) => [...values].map((weight, place) => [place, textOf(stack, side, place), weight]).filter(([, , weight]) => weight > 0).sort((one, other) => other[2] - one[2]).slice(0, 5);
    const mean = (lines) => lines[0].map((_, at) => lines.reduce((sum, line) => sum + line[at], 0) / lines.length);
    pageState.top_tokens.from.everywhere = best(mean(maps.map(([, , values]) => Array.from(values.subarray(query * size, (query + 1) * size)))), "key");
    pageState.top_tokens.to = {
      everywhere: best(mean(maps.map(([, , values]) => column(values))), "query"),
      heads: strongestFirst(maps.map(([layer, head, values]) => [layer, head, best(column(values), "query")])),
    };
  }
  showTopTokens();
}

const strongestFirst = (heads) => heads.sort((one, other) => (other[2][0]?.[2] ?? 0) - (one[2][0]?.[2] ?? 0));

function showTokens() {
  if (!pageState.head || !pageState.cell) return;
  const stack = stackShown();
  if (pageState.head.queries) return showLines();
  if (stack.cells) return showStrip();
  const { query, tops } = largestOf(shown, stack, pageState.cell.query);
  const chosen = query === pageState.cell.query ? "" : `, the stored query nearest to ${pageState.cell.query.toLocaleString("en")}`;
  const items = tops.map(([key, text, weight]) => {
    const button = make("button", { type: "button", className: key === pageState.cell.key ? "tok chosen" : "tok", title: `key ${key}` }, literal(text), ` ${number(weight, 3)}`);
    button.style.setProperty("--share", clamp(weight, 0, 1).toFixed(3));
    button.addEventListener("click", () => pointAt(query, key));
    return make("li", {}, button);
  });
  const note = make("p", { className: "quiet" }, `Query ${query.toLocaleString("en")} `, literal(textOf(stack, "query", query)), `${chosen}: the keys it attends to most in this head.`);
  element("lines").replaceChildren(note, make("ol", { className: "kept" }, ...items));
}

// -- colors ------------------------------------------------------------------------------------------------------------------

const mappers = () => new Set(heatmaps().map((heatmap) => heatmap.glyph.color_mapper));

function setPalette({ log, palette }) {
  for (const mapper of mappers()) mapper.palette = PALETTES[palette];
  for (const heatmap of heatmaps()) heatmap.visible = isLog(heatmap) === log;
  if (pageState.head) drawMap();
}

function setTheme({ text, line, paper, nothing }) {
  for (const mapper of mappers()) mapper.nan_color = nothing;
  for (const figure of [chart, entropy, received]) {
    figure.setv({ background_fill_color: paper, border_fill_color: paper, outline_line_color: line });
    for (const axis of [...figure.left, ...figure.above, ...figure.below]) {
      axis.setv({ major_label_text_color: text, axis_label_text_color: text, axis_line_color: line, major_tick_line_color: line });
    }
  }
}

// print the figures at their screen size, scaled by CSS; repaint now, because the next frame would be too late
window.addEventListener("beforeprint", () => {
  element("chart").style.setProperty("--wide", element("chart").offsetWidth);
  element("chart").style.setProperty("--tall", `${document.querySelector(".map").offsetHeight}px`);
  useColorScheme("light");
});
window.addEventListener("afterprint", () => useColorScheme(""));

function useColorScheme(scheme) {
  document.documentElement.style.colorScheme = scheme;
  paintTheme();
  for (const figure of [chart, entropy, received]) Bokeh.index.find_one(figure).paint();
}

// -- the table of all heads ----------------------------------------------------------------------------------------------------

const table = document.querySelector("#statistics table");
table.tBodies[0].addEventListener("click", ({ target }) => {
  if (!target.dataset.head) return;
  ask("go", { head: target.dataset.head });
  element("head").scrollIntoView();
});

table.tHead.addEventListener("click", ({ target }) => {
  const heading = target.closest("th");
  if (!heading) return;
  const column = [...heading.parentElement.cells].indexOf(heading);
  const down = heading.getAttribute("aria-sort") === "descending";
  for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", down ? "ascending" : "descending");
  const read = (row) => row.cells[column].textContent.trim();
  const compare = (one, other) => Number(read(one).replace("−", "-")) - Number(read(other).replace("−", "-")) || read(one).localeCompare(read(other), "en", { numeric: true });
  const missing = (row) => read(row) === ""; // sorts last in both directions
  const rows = [...table.tBodies[0].rows].sort((one, other) => missing(one) - missing(other) || (down ? compare(one, other) : compare(other, one)));
  table.tBodies[0].append(...rows);
});

// ------------------------------------------------------------------------------------------------------------------------------

whenThere(async (found) => {
  [entropy, received] = ["entropy", "received"].map((name) => found.get_model_by_name(name));
  pageState = { model: FACTS };
  buildGrid();
  setColors(settings.palette);
  paintTheme();
  setPalette(settings);
  listen();
  chart.on_event("rangesupdate", () => pageState.head && panned());
  texts = JSON.parse(new TextDecoder().decode(await unpacked("tokens")));
  ask("go", fromAddress());
  for (const { name, heads } of FACTS.stacks) {
    for (const layer of heads.keys()) fillGrid({ stack: name, layer, heads: await layerKept(name, layer) });
  }
  describeHead();
});
