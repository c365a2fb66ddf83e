// -- the head that is shown: what is said of it, what the pointer does on its map, the colours of the theme ----------------

const stackShown = () => pageState.model.stacks.find((stack) => stack.name === pageState.head.stack);

function headArrived() {
  cursor = undefined;
  const { stack, layer, head } = pageState.head;
  const { queries, keys, hides } = stackShown();
  element("head-heading").textContent = `${nameOf(stack)}, layer ${layer}, head ${head}`;
  if (element("hide")) {
    element("hide-label").title = "Leave out what goes to the first token and to those that are no part of the text";
    element("hidden").replaceChildren(...hides.flatMap((token) => [" ", literal(token)]));
    element("hide").disabled = !hides.length;
  }
  describeHead();
  markHead(`${stack}.${layer}.${head}`);
  element("chart").setAttribute("aria-label", `Attention map of ${nameOf(stack)}, layer ${layer}, head ${head}: ${queries} queries by ${keys} keys. Arrow keys move from cell to cell, with Shift ten at a time; plus and minus zoom, 0 shows everything.`);
}

function describeHead() {
  const { stack, layer, head } = pageState.head;
  const { queries, keys, sampled } = stackShown();
  element("head-note").textContent = stack === "cross" ? "Each query is the token read last: its row is what the next token follows from." : "";
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

// Bokeh says nothing to scripts of the page when its document has come
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
