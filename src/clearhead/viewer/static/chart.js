// -- the heatmap of one head: readout, settings, zoom, cursor ---------------------------------------------------------

let chart; // the figure
let sources; // data of the heatmaps: the window, then the whole matrix
const settings = { reduce: "max", log: true, hide: false, palette: "viridis" };

// the bin or cell at data coordinates of the heatmap
function binAt(x, y) {
  const { queries, keys } = stackShown();
  if (!(x >= 0 && y >= 0 && x < keys && y < queries)) return undefined;
  for (const { data } of sources) {
    if (!data.image.length) continue;
    const [high, wide] = data.image[0].shape;
    const [down, across] = [data.rows[0], data.keys[0]];
    const [row, column] = [Math.floor((y - data.y[0]) / down), Math.floor((x - data.x[0]) / across)];
    if (row < 0 || column < 0 || row >= high || column >= wide) continue;
    const at = row * wide + column;
    const scores = data.scores[0];
    return {
      query: Math.floor(data.y[0] + row * down), // a preview's bins may not align with cells
      queryEnd: Math.min(queries, Math.ceil(data.y[0] + (row + 1) * down)),
      key: Math.floor(data.x[0] + column * across),
      keyEnd: Math.min(keys, Math.ceil(data.x[0] + (column + 1) * across)),
      value: Number.isNaN(data.image[0][at]) ? 0 : data.image[0][at],
      score: scores.length ? scores[at] : undefined,
      preview: !data.exact[0],
      sampled: data.sampled?.[0], // reports of long texts: computed from some queries only
      shades: data.shades?.[0], // reports: significant digits, and the smallest weight that a shade can represent
    };
  }
  return undefined;
}

const isCell = (bin) => bin.queryEnd - bin.query === 1 && bin.keyEnd - bin.key === 1;
const span = (start, end) => (end - start === 1 ? `${start}` : `${start} to ${end - 1}`);
const tokenAt = (side, place) => {
  const tokens = pageState.tokens;
  return tokens && (side === "query" ? tokens.rows[place - tokens.row] : tokens.keys[place - tokens.key]);
};

function amount({ value, shades }) {
  if (!shades) return number(value);
  return value > 0 && value <= shades.least ? `less than ${number(shades.least, shades.digits)}` : number(value, shades.digits);
}

function readOut(bin) {
  const line = element("readout");
  if (!bin) return line.replaceChildren();
  const named = (side, start, end) => {
    const token = end - start === 1 ? (bin[`${side}_token`] ?? tokenAt(side, start)) : undefined;
    const word = { query: ["query", "queries"], key: ["key", "keys"] }[side][end - start === 1 ? 0 : 1];
    return token === undefined ? [`${word} ${span(start, end)}`] : [`${word} ${start} `, literal(token)];
  };
  const cell = `weight ${amount(bin)}${bin.score === undefined ? "" : `, score ${number(bin.score)}`}`;
  const pooledOver = `${settings.reduce === "max" ? "largest" : "mean"} weight ${amount(bin)}${bin.preview ? " (preview)" : bin.sampled ? " (sampled)" : ""}`;
  const value = !isCell(bin) ? pooledOver : settings.hide && !bin.said && stackShown().hidden.includes(bin.key) ? "hidden" : cell;
  line.replaceChildren(
    make("span", {}, ...named("query", bin.query, bin.queryEnd), " → ", ...named("key", bin.key, bin.keyEnd), ": "),
    make("strong", { textContent: value }),
  );
}

function sayCell() {
  const { query, key, query_token, key_token, weight, score } = pageState.cell;
  if (cursor?.query === query && cursor?.key === key) cursor = undefined;
  if (weight === undefined) {
    readOut(binAt(key + 0.5, query + 0.5));
    element("live").textContent = `query ${query} ${query_token}, key ${key} ${key_token}, in the bin of ${element("readout").textContent}`;
    return;
  }
  element("live").textContent = `query ${query_token}, key ${key_token}, weight ${number(weight)}`;
  readOut({ query, queryEnd: query + 1, query_token, key, keyEnd: key + 1, key_token, value: weight, score, said: true });
}

function settingsChanged() {
  settings.reduce = document.querySelector("[name=reduce]:checked").value;
  settings.log = document.querySelector("[name=scale]:checked").value === "log";
  settings.hide = element("hide")?.checked ?? false;
  const palette = element("palette").value;
  if (palette !== settings.palette) setColors((settings.palette = palette));
  ask("settings", settings);
  showLegend();
}

// each heatmap has one renderer per color scale; only the selected one is visible
const heatmaps = () => chart.renderers.filter((renderer) => renderer.tags.includes("heatmap"));
const isLog = (heatmap) => heatmap.glyph.color_mapper.type === "LogColorMapper";
const mapperShown = () => heatmaps().find((heatmap) => isLog(heatmap) === settings.log).glyph.color_mapper;

// mappers whose ends, which change with the text and the window, update the legend
const followed = new Set();
function showLegend() {
  const shades = PALETTES[settings.palette];
  const picked = Array.from({ length: 9 }, (_, place) => shades[Math.round((place * 255) / 8)]);
  element("ramp").style.background = `linear-gradient(to right, ${picked.join(", ")})`;
  const mapper = mapperShown();
  if (!followed.has(mapper)) {
    followed.add(mapper);
    for (const end of [mapper.properties.low, mapper.properties.high]) end.change.connect(showLegend);
  }
  element("low").textContent = number(mapper.low ?? 0, 2);
  element("high").textContent = number(mapper.high ?? 1, 2);
}

// -- windows -----------------------------------------------------------------------------------------------------------

const windowShown = () => pageState.tokens?.window ?? [0, 1, 0, 1];

function scaleWindow(factor) {
  const { queries, keys } = stackShown();
  const [row, rowEnd, key, keyEnd] = windowShown();
  const center = pageState.cell ?? { query: (row + rowEnd) / 2, key: (key + keyEnd) / 2 };
  const scaled = (start, end, length, middle) => {
    const size = Math.min(length, Math.max(Math.min(4, length), Math.round((end - start) * factor)));
    const inside = middle >= start && middle < end ? middle : (start + end) / 2;
    const first = Math.min(length - size, Math.max(0, Math.round(inside - size / 2)));
    return [first, first + size];
  };
  ask("window", { rows: scaled(row, rowEnd, queries, center.query), keys: scaled(key, keyEnd, keys, center.key) });
}

const showAll = () => ask("window", { rows: [0, stackShown().queries], keys: [0, stackShown().keys] });

// the requested cell, which may be ahead of the last answer
let cursor;
function pointAt(query, key) {
  cursor = { query, key };
  ask("cursor", cursor);
}

// the window follows the cursor
function moveCursor(down, across) {
  const { queries, keys } = stackShown();
  const [row, rowEnd, key, keyEnd] = windowShown();
  const from = cursor ?? pageState.cell;
  const query = Math.min(queries - 1, Math.max(0, from.query + down));
  const column = Math.min(keys - 1, Math.max(0, from.key + across));
  const moved = (place, start, end) => (place < start ? [place, place + end - start] : place >= end ? [place + 1 - end + start, place + 1] : [start, end]);
  if (query < row || query >= rowEnd || column < key || column >= keyEnd) {
    ask("window", { rows: moved(query, row, rowEnd), keys: moved(column, key, keyEnd) });
  }
  pointAt(query, column);
}

function chartKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !pageState?.cell) return;
  const far = event.shiftKey ? 10 : 1;
  const acts = {
    ArrowUp: () => moveCursor(-far, 0),
    ArrowDown: () => moveCursor(far, 0),
    ArrowLeft: () => moveCursor(0, -far),
    ArrowRight: () => moveCursor(0, far),
    "+": () => scaleWindow(0.5),
    "=": () => scaleWindow(0.5),
    "-": () => scaleWindow(2),
    0: showAll,
  };
  if (!(event.key in acts)) return;
  acts[event.key]();
  event.preventDefault();
}

// -- the window as a table, for screen readers ------------------------------------------------------------------------

const TABLE = 16; // most rows and columns

function fillTable() {
  if (!element("window-table").open || !pageState.tokens) return;
  const [row, rowEnd, key, keyEnd] = windowShown();
  const corner = binAt(key + 0.5, row + 0.5);
  if (!corner || corner.preview) return;
  const rows = groups(corner.query, rowEnd, corner.queryEnd - corner.query, stackShown().queries);
  const columns = groups(corner.key, keyEnd, corner.keyEnd - corner.key, stackShown().keys);
  const single = rows.every(([start, end]) => end - start === 1) && columns.every(([start, end]) => end - start === 1);
  element("window-caption").textContent = single
    ? "The weight of each query (row) and key (column)."
    : `The ${settings.reduce === "max" ? "largest" : "mean"} weight of each range of queries (rows) and keys (columns)${corner.sampled ? ", from the sampled queries" : ""}.`;
  const heading = (side, [start, end], scope) => {
    const token = end - start === 1 ? tokenAt(side, start) : undefined;
    return make("th", { scope }, token === undefined ? span(start, end) : literal(token));
  };
  const head = make("tr", {}, make("td"), ...columns.map((group) => heading("key", group, "col")));
  const body = rows.map((group) =>
    make("tr", {}, heading("query", group, "row"), ...columns.map((other) => make("td", { className: "number", textContent: number(pooled(group, other), corner.shades?.digits ?? 3) }))),
  );
  document.querySelector("#window-table table").replaceChildren(make("thead", {}, head), make("tbody", {}, ...body));
}

// ranges of whole bins, so that ranges do not overlap
function groups(start, end, bin, length) {
  const size = bin * Math.ceil((end - start) / bin / TABLE);
  const found = [];
  for (let first = start; first < end; first += size) {
    const last = Math.min(length, first + Math.min(size, bin * Math.ceil((end - first) / bin)));
    found.push([first, last]);
  }
  return found;
}

function pooled([row, rowEnd], [key, keyEnd]) {
  let [most, sum, cells] = [0, 0, 0];
  for (let y = row; y < rowEnd; ) {
    let bin;
    for (let x = key; x < keyEnd; x = bin.keyEnd) {
      bin = binAt(x + 0.5, y + 0.5);
      if (!bin) return null;
      const size = (bin.queryEnd - bin.query) * (bin.keyEnd - bin.key);
      most = Math.max(most, bin.value);
      sum += size * bin.value;
      cells += size;
    }
    y = bin.queryEnd;
  }
  return settings.reduce === "max" ? most : sum / cells;
}

for (const input of document.querySelectorAll(".controls input, #palette")) input.addEventListener("change", settingsChanged);
element("closer").addEventListener("click", () => scaleWindow(0.5));
element("farther").addEventListener("click", () => scaleWindow(2));
element("all").addEventListener("click", showAll);
element("chart").addEventListener("keydown", chartKey);
element("window-table").addEventListener("toggle", fillTable);
