// -- the selected head: description, pointer events, theme colors -----------------------------------------------------

const stackShown = () => pageState.model.stacks.find((stack) => stack.name === pageState.head.stack);

function headArrived() {
  cursor = undefined;
  const { stack, layer, head } = pageState.head;
  const { queries, keys, hides } = stackShown();
  element("head-heading").textContent = `${nameOf(stack)}, layer ${layer}, head ${head}`;
  if (element("hide")) {
    element("hide-label").title = "Hide attention to the first token and to special tokens (attention sinks)";
    element("hidden").replaceChildren(...hides.flatMap((token) => [" ", literal(token)]));
    element("hide").disabled = !hides.length;
  }
  describeHead();
  markHead(`${stack}.${layer}.${head}`);
  element("chart").setAttribute("aria-label", `Attention heatmap of ${nameOf(stack)}, layer ${layer}, head ${head}: ${queries} queries by ${keys} keys. Arrow keys move by one cell, with Shift by ten. Plus and minus zoom. 0 shows the whole matrix.`);
}

function describeHead() {
  const { stack, layer, head } = pageState.head;
  const { queries, keys, sampled } = stackShown();
  element("head-note").textContent = stack === "cross" ? "Each query is the last token read. Its row shows the source tokens used to predict the next token." : "";
  const payload = thumbs.get(`${stack}.${layer}.${head}`)?.payload;
  const entropy = payload && payload.entropy !== null ? `entropy ${fixed(payload.entropy)} nats${sampled ? " (sampled)" : ""}` : "";
  element("head-facts").textContent = [`${queries} × ${keys} tokens`, entropy, ...(payload?.labels ?? [])].filter(Boolean).join(" · ");
}

function drawn() {
  showLegend();
  showTokens();
  fillTable();
}

function listen() {
  chart.on_event("mousemove", ({ x, y }) => pageState.head && readOut(binAt(x, y)));
  chart.on_event("mouseleave", () => pageState.cell && sayCell());
  chart.on_event("tap", ({ x, y }) => {
    const bin = binAt(x, y);
    if (bin) pointAt(Math.floor(y), Math.floor(x));
  });
}

function paintTheme() {
  const cssColor = (name) => {
    const probe = make("span", { style: `color: var(--${name})` });
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };
  ask("theme", { text: cssColor("ink"), line: cssColor("line"), paper: cssColor("paper"), nothing: cssColor("panel") });
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => pageState && paintTheme());

// polls, because Bokeh has no event for scripts of the page when its document is ready
function whenThere(start) {
  const waiting = setInterval(() => {
    const [found] = window.Bokeh?.documents ?? [];
    chart = found?.get_model_by_name("map");
    if (!chart) return;
    clearInterval(waiting);
    sources = ["detail", "overview"].map((name) => chart.renderers.find((renderer) => renderer.name === name).data_source);
    start(found);
  }, 20);
}
