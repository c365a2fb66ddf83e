// -- connecting the parts: what arrives, where the page is ---------------------------------------------------------------

const stackShown = () => wire.model.stacks.find((stack) => stack.name === wire.head.stack);

// -- the address: text, head, window and cell stand in its fragment --------------------------------------------------------

function fromAddress() {
  const said = new URLSearchParams(location.hash.slice(1));
  const pair = (name) => (/^\d+-\d+$/.test(said.get(name) ?? "") ? said.get(name).split("-").map(Number) : undefined);
  const found = { head: said.get("head"), rows: pair("rows"), keys: pair("keys"), cursor: pair("cell"), text: said.get("text"), given: said.get("given") };
  return Object.fromEntries(Object.entries(found).filter(([, value]) => value !== null && value !== undefined));
}

function toAddress() {
  const { stack, layer, head } = wire.head;
  const { queries, keys } = stackShown();
  const [row, rowEnd, key, keyEnd] = windowShown();
  const parts = new URLSearchParams({ head: `${stack}.${layer}.${head}` });
  if (rowEnd - row < queries) parts.set("rows", `${row}-${rowEnd}`);
  if (keyEnd - key < keys) parts.set("keys", `${key}-${keyEnd}`);
  if (wire.cell) parts.set("cell", `${wire.cell.query}-${wire.cell.key}`);
  for (const [name, value] of Object.entries(textAsked())) parts.set(name, value);
  return `#${parts}`;
}

// which text is shown, as a request or an address says it; the first that was given goes without saying
function textAsked() {
  const { text, chosen } = wire.model;
  return chosen === null ? { text } : chosen ? { given: chosen } : {};
}

let going = true; // to where an address says: that is no step of its own
let written; // a timer, while what is shown differs from the address
// once things have settled: another text, head or window is a step that one can go back from, another cell is not
function writeAddress() {
  clearTimeout(written);
  written = setTimeout(() => {
    written = undefined;
    const place = toAddress();
    const withoutCell = (hash) => hash.replace(/&cell=[^&]*/, "");
    const step = withoutCell(place) !== withoutCell(location.hash) && !going;
    if (place !== location.hash) history[step ? "pushState" : "replaceState"](null, "", place);
    going = false;
  }, 300);
}

window.addEventListener("popstate", () => {
  clearTimeout(written);
  written = undefined;
  going = true;
  ask("go", fromAddress());
});

// -- what arrives ------------------------------------------------------------------------------------------------------

function modelArrived() {
  const { name, text, given, chosen, runs, notes } = wire.model;
  element("model").textContent = name;
  element("text").value = text;
  element("run").querySelector("button").disabled = !runs;
  element("text").disabled = !runs;
  if (!runs) element("text").value = "A recording: its text cannot be run again.";
  element("given").hidden = given.length < 2;
  element("given").replaceChildren(...given.map((line, place) => make("option", { value: place, textContent: `${place + 1}: ${line}` })));
  element("given").value = chosen ?? "";
  element("notes").textContent = notes.join("; ");
  buildGrid();
}

function headArrived() {
  cursor = undefined;
  const { stack, layer, head } = wire.head;
  const { queries, keys, hides } = stackShown();
  element("head-heading").textContent = `${nameOf(stack)}, layer ${layer}, head ${head}`;
  element("hide-label").title = "Leave out what goes to the first token and to those that are no part of the text";
  element("hidden").replaceChildren(...hides.flatMap((token) => [" ", literal(token)]));
  element("hide").disabled = !hides.length;
  describeHead();
  markHead(`${stack}.${layer}.${head}`);
  element("chart").setAttribute("aria-label", `Attention map of ${nameOf(stack)}, layer ${layer}, head ${head}: ${queries} queries by ${keys} keys. Arrow keys move from cell to cell, with Shift ten at a time; plus and minus zoom, 0 shows everything.`);
}

function describeHead() {
  const { stack, layer, head } = wire.head;
  const { queries, keys, sampled } = stackShown();
  element("head-note").textContent = stack === "cross" ? "Each query is the token read last: its row is what the next token follows from." : "";
  const facts = thumbs.get(`${stack}.${layer}.${head}`)?.facts;
  const entropy = facts && facts.entropy !== null ? `entropy ${fixed(facts.entropy)} nats${sampled ? " (sampled)" : ""}` : "";
  element("head-facts").textContent = [`${queries} × ${keys} tokens`, entropy, ...(facts?.labels ?? [])].filter(Boolean).join(" · ");
}

function statusArrived() {
  const { text, busy, percent, error } = wire.status;
  if (element("status").textContent !== text) element("status").textContent = text; // it is read out
  element("progress").textContent = percent === null ? "" : `${percent} %`;
  element("status").className = error ? "error" : busy ? "busy" : "";
  if (error) element("notes").textContent = "";
  element("run").setAttribute("aria-busy", String(busy));
}

function drawn() {
  showLegend();
  showTokens();
  fillTable();
}

function start(found) {
  wire = found.get_model_by_name("wire");
  chart = found.get_model_by_name("map");
  sources = ["detail", "whole"].map((name) => chart.renderers.find((renderer) => renderer.name === name).data_source);
  const arrivals = {
    model: modelArrived,
    thumbnails: () => wire.thumbnails && (fillGrid(wire.thumbnails), wire.head && describeHead()),
    head: headArrived,
    tokens: () => (showTokens(), fillTable(), writeAddress()),
    cell: () => (sayCell(), showTokens(), writeAddress()),
    looks: showLooks,
    calculation: showCalculation,
    status: statusArrived,
  };
  for (const [name, arrived] of Object.entries(arrivals)) {
    const early = ["model", "thumbnails", "head", "status"].includes(name);
    wire.properties[name].change.connect(() => wire[name] !== null && (early || wire.head) && arrived());
  }
  chart.renderers[0].glyph.properties.color_mapper.change.connect(showLegend);
  for (const source of sources) source.properties.data.change.connect(() => wire.head && drawn());
  found.on_event("connection_lost", () => {
    element("progress").textContent = "";
    Object.assign(element("status"), { className: "error", textContent: "clearhead view has stopped: start it again and reload this page" });
  });
  chart.on_event("mousemove", ({ x, y }) => wire.head && readOut(binAt(x, y)));
  chart.on_event("mouseleave", () => wire.cell && sayCell());
  chart.on_event("tap", ({ x, y }) => {
    const bin = binAt(x, y);
    if (bin) pointAt(Math.floor(y), Math.floor(x));
  });
  setColours(settings.palette);
  paintTheme();
  ask("settings", settings);
  ask("go", fromAddress());
}

function paintTheme() {
  const colour = (name) => {
    const probe = make("span", { style: `color: var(--${name})` });
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };
  ask("theme", { text: colour("ink"), line: colour("line"), paper: colour("paper"), nothing: colour("panel") });
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => wire && paintTheme());

element("run").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = element("text").value;
  if (text.length > wire.model.longest) {
    const message = `the text has ${text.length.toLocaleString("en")} letters, and ${wire.model.longest.toLocaleString("en")} can be typed here`;
    Object.assign(element("status"), { className: "error", textContent: message });
  } else ask("go", { text });
});
element("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    element("run").requestSubmit();
  }
});
element("given").addEventListener("change", () => ask("go", { given: Number(element("given").value) }));

// Bokeh says nothing to scripts of the page when its document has come
const waiting = setInterval(() => {
  const [found] = window.Bokeh?.documents ?? [];
  if (!found?.get_model_by_name("wire")) return;
  clearInterval(waiting);
  start(found);
}, 20);
