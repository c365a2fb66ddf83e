// -- the viewer's page: requests to the server and their answers ------------------------------------------------------

let asked = 0;
const ask = (kind, payload = {}) => (pageState.ask = { kind, asked: ++asked, ...payload });

function modelArrived() {
  const { name, text, given, chosen, runs, notes } = pageState.model;
  element("model").textContent = name;
  element("text").value = text;
  element("run").querySelector("button").disabled = !runs;
  element("text").disabled = !runs;
  if (!runs) element("text").value = "A recording cannot run on another text.";
  element("given").hidden = given.length < 2;
  element("given").replaceChildren(...given.map((line, place) => make("option", { value: place, textContent: `${place + 1}: ${line}` })));
  element("given").value = chosen ?? "";
  element("notes").textContent = notes.join("; ");
  buildGrid();
}

function statusArrived() {
  const { text, busy, percent, error } = pageState.status;
  if (element("status").textContent !== text) element("status").textContent = text; // screen readers announce each change
  element("progress").textContent = percent === null ? "" : `${percent} %`;
  element("status").className = error ? "error" : busy ? "busy" : "";
  if (error) element("notes").textContent = "";
  element("run").setAttribute("aria-busy", String(busy));
}

function showTokens() {
  if (!pageState.head) return;
  if (!pageState.head.queries) showStrip();
  else if (sources[1].data.image.length) showLines();
}

function start(found) {
  pageState = found.get_model_by_name("page_state");
  const arrivals = {
    model: modelArrived,
    thumbnails: () => pageState.thumbnails && (fillGrid(pageState.thumbnails), pageState.head && describeHead()),
    head: headArrived,
    tokens: () => (showTokens(), fillTable(), writeAddress()),
    cell: () => (sayCell(), showTokens(), writeAddress()),
    top_tokens: showTopTokens,
    calculation: showCalculation,
    status: statusArrived,
  };
  for (const [name, arrived] of Object.entries(arrivals)) {
    const early = ["model", "thumbnails", "head", "status"].includes(name);
    pageState.properties[name].change.connect(() => pageState[name] !== null && (early || pageState.head) && arrived());
  }
  for (const source of sources) source.properties.data.change.connect(() => pageState.head && drawn());
  found.on_event("connection_lost", () => {
    element("progress").textContent = "";
    Object.assign(element("status"), { className: "error", textContent: "clearhead view has stopped; start it again and open its new link" });
  });
  listen();
  setColors(settings.palette);
  paintTheme();
  ask("settings", settings);
  ask("go", fromAddress());
}

element("run").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = element("text").value;
  if (text.length > pageState.model.longest) {
    const message = `the text has ${text.length.toLocaleString("en")} characters; expected at most ${pageState.model.longest.toLocaleString("en")}`;
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

whenThere(start);
