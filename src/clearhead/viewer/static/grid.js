// -- thumbnails of all heads, sorted and filtered ---------------------------------------------------------------------

const thumbs = new Map(); // "stack.layer.head" -> { place, button, canvas, caption, label, payload }
const ACROSS = 9; // most heads in a row; more heads wrap evenly
let colors; // the selected palette, one uint32 per color

function setColors(palette) {
  const bytes = PALETTES[palette].flatMap((color) => [...[1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16)), 255]);
  colors = new Uint32Array(new Uint8Array(bytes).buffer);
  for (const thumb of thumbs.values()) paint(thumb);
}

function paint({ canvas, payload }) {
  if (!payload) return;
  const levels = new Uint8Array(payload.levels);
  Object.assign(canvas, { width: payload.keys, height: payload.rows });
  const context = canvas.getContext("2d");
  const image = context.createImageData(payload.keys, payload.rows);
  const pixels = new Uint32Array(image.data.buffer);
  levels.forEach((level, at) => (pixels[at] = colors[level]));
  context.putImageData(image, 0, 0);
}

function makeThumb(stack, layer, head) {
  const place = `${stack}.${layer}.${head}`;
  const canvas = make("canvas", { width: 1, height: 1 });
  const caption = make("span");
  const label = make("span", { className: "label" });
  const button = make("button", { type: "button", className: "thumb" }, canvas, caption, label);
  button.dataset.head = place;
  button.addEventListener("click", () => ask("go", { ...textAsked(), head: place }));
  const thumb = { place, stack, layer, head, button, canvas, caption, label, payload: undefined };
  describe(thumb);
  thumbs.set(place, thumb);
}

function describe({ stack, layer, head, button, caption, label, payload }) {
  const name = `${nameOf(stack)}, layer ${layer}, head ${head}`;
  const entropy = payload && payload.entropy !== null ? fixed(payload.entropy) : "";
  caption.textContent = element("sort").value === "layer" ? `${head} · ${entropy}` : `${layer}.${head} · ${entropy}`;
  label.textContent = payload?.labels[0]?.replace(/ token$/, "") ?? "";
  const labels = payload?.labels.join(", ");
  button.title = `${name}${entropy && `\nentropy ${entropy} nats`}${labels ? `\n${labels}` : ""}`;
  button.setAttribute("aria-label", `${name}${entropy && `, entropy ${entropy} nats`}${labels ? `, ${labels}` : ""}`);
}

function buildGrid() {
  thumbs.clear();
  for (const { name, heads } of pageState.model.stacks) {
    heads.forEach((count, layer) => {
      for (let head = 0; head < count; head++) makeThumb(name, layer, head);
    });
  }
  const sampled = Math.max(...pageState.model.stacks.map((stack) => stack.sampled));
  element("heads-note").textContent =
    "Each thumbnail is one head: queries down, keys across, brighter for more attention. Below it: its mean entropy in nats" +
    ` and its main label ${pageState.model.labeled ? "from the given roles" : "on this text"}.${sampled ? ` Sampled: computed from ${sampled} evenly spaced queries (exact rows).` : ""}`;
  fillFilter();
  arrange();
}

function fillGrid({ stack, layer, heads }) {
  heads.forEach((payload, head) => {
    const thumb = thumbs.get(`${stack}.${layer}.${head}`);
    if (!thumb) return;
    thumb.payload = payload;
    describe(thumb);
    paint(thumb);
  });
  fillFilter();
  if (element("sort").value !== "layer" || element("filter").value) arrange();
}

function fillFilter() {
  const filter = element("filter");
  const stacks = pageState.model.stacks.map((stack) => [`stack:${stack.name}`, nameOf(stack.name)]);
  const labels = new Set([...thumbs.values()].flatMap((thumb) => thumb.payload?.labels ?? []));
  const options = [["", "all"], ...(stacks.length > 1 ? stacks : []), ...[...labels].sort().map((label) => [`label:${label}`, label])];
  if (options.map(([value]) => value).join("\n") === [...filter.options].map((option) => option.value).join("\n")) return;
  const chosen = filter.value;
  filter.replaceChildren(...options.map(([value, text]) => make("option", { value, textContent: text })));
  filter.value = options.some(([value]) => value === chosen) ? chosen : "";
}

function wanted(thumb) {
  const [kind, name] = [element("filter").value.split(":", 1)[0], element("filter").value.replace(/^\w*:/, "")];
  if (kind === "stack") return thumb.stack === name;
  return kind !== "label" || (thumb.payload?.labels.includes(name) ?? false);
}

function arrange() {
  const shown = [...thumbs.values()].filter(wanted);
  for (const thumb of shown) describe(thumb);
  const order = element("sort").value;
  element("grid").replaceChildren(...(order === "layer" ? byLayer(shown) : [sorted(shown, order)]));
  if (!shown.length) element("grid").append(make("p", { className: "quiet", textContent: "No head has this label." }));
}

function sorted(shown, order) {
  const entropy = (thumb) => thumb.payload?.entropy ?? Infinity;
  const label = (thumb) => thumb.payload?.labels[0] ?? "\uffff"; // heads without a label come last
  const compare = {
    sharp: (one, other) => entropy(one) - entropy(other),
    broad: (one, other) => entropy(other) - entropy(one),
    label: (one, other) => label(one).localeCompare(label(other)) || entropy(one) - entropy(other),
  }[order];
  return make("div", { className: "boxes" }, ...[...shown].sort(compare).map((thumb) => thumb.button));
}

// heads that share a key head are drawn in one box
function byLayer(shown) {
  const parts = [];
  for (const { name, heads, groups } of pageState.model.stacks) {
    const own = shown.filter((thumb) => thumb.stack === name);
    if (!own.length) continue;
    parts.push(make("h3", { textContent: nameOf(name) }));
    heads.forEach((count, layer) => {
      const here = own.filter((thumb) => thumb.layer === layer);
      if (!here.length) return;
      const size = count / groups[layer];
      const across = Math.ceil(count / Math.ceil(count / ACROSS));
      const boxes = [];
      for (let first = 0; first < count; first += size) {
        const group = here.filter((thumb) => thumb.head >= first && thumb.head < first + size);
        const title = size > 1 ? `These heads share key head ${first / size}` : "";
        if (group.length) boxes.push(make("div", { className: size > 1 ? "group shared" : "group", title }, ...group.map((thumb) => thumb.button)));
      }
      const row = make("div", { className: "layer" }, make("span", { className: "number", textContent: `L${layer}` }), make("div", { className: "boxes" }, ...boxes));
      row.style.setProperty("--across", across);
      parts.push(row);
    });
  }
  return parts;
}

// scrolls to the head, except for the first one: a new page starts at the top
let marked = false;
function markHead(place) {
  for (const thumb of thumbs.values()) thumb.button.toggleAttribute("aria-current", false);
  const button = thumbs.get(place)?.button;
  button?.setAttribute("aria-current", "true");
  const [pane, own] = [element("heads"), button?.getBoundingClientRect()];
  const { top, bottom } = pane.getBoundingClientRect();
  if (marked && own?.height && (own.top < top + 40 || own.bottom > bottom)) pane.scrollTop += own.top - top - (bottom - top) / 2;
  marked = true;
}

element("sort").addEventListener("change", arrange);
element("filter").addEventListener("change", arrange);
