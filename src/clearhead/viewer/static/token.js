// -- one token: the keys it attends to and the queries that attend to it ----------------------------------------------

const STEP = 22; // pixels between tokens

function choose(side, place) {
  const { query, key } = pageState.cell ?? { query: 0, key: 0 };
  const same = pageState.top_tokens?.same;
  pointAt(side === "query" || same ? place : query, side === "key" || same ? place : key);
}

const draw = (name, attributes, ...children) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};

// queries on the left, keys on the right, a line for each weight
function showLines() {
  const { queries: rows, keys } = pageState.head;
  const [left, right] = [210, 430];
  const height = STEP * Math.max(rows.length, keys.length) + 10;
  const y = (place) => STEP * place + STEP / 2 + 5;
  const lines = [];
  rows.forEach((_, query) =>
    keys.forEach((_, key) => {
      const weight = binAt(key + 0.5, query + 0.5)?.value ?? 0;
      if (weight < 0.02) return;
      const chosen = pageState.cell?.query === query;
      const path = `M${left + 6} ${y(query)} C${left + 90} ${y(query)} ${right - 90} ${y(key)} ${right - 6} ${y(key)}`;
      lines.push(draw("path", { d: path, "stroke-width": (0.5 + 5 * weight).toFixed(2), "stroke-opacity": Math.min(1, chosen ? 0.25 + weight : 0.55 * weight).toFixed(3) }));
    }),
  );
  const word = (side, place, text) => {
    const chosen = place === (side === "query" ? pageState.cell?.query : pageState.cell?.key);
    const shown = draw(
      "text",
      {
        x: side === "query" ? left : right, y: y(place), "text-anchor": side === "query" ? "end" : "start", "dominant-baseline": "middle",
        class: chosen ? "chosen" : "", tabindex: 0, role: "button", "aria-label": `${side} ${text}`, "unicode-bidi": "isolate",
      },
      clipped(text),
    );
    shown.addEventListener("click", () => choose(side, place));
    shown.addEventListener("keydown", (event) => ["Enter", " "].includes(event.key) && (event.preventDefault(), choose(side, place)));
    return shown;
  };
  const words = [...rows.map((text, place) => word("query", place, text)), ...keys.map((text, place) => word("key", place, text))];
  const focused = [...document.querySelectorAll("#lines text")].indexOf(document.activeElement);
  element("lines").replaceChildren(draw("svg", { viewBox: `0 0 640 ${height}`, role: "group", "aria-label": "Queries on the left, keys on the right; thicker lines for larger weights" }, ...lines, ...words));
  if (focused >= 0) document.querySelectorAll("#lines text")[focused]?.focus();
}

const clipped = (text) => (text.length > 24 ? `${text.slice(0, 23)}…` : text);

// for longer texts: the keys of the window, shaded by their weight for the selected query
function showStrip() {
  const { row, start } = pageState.cell ?? {};
  const { keys, key } = pageState.tokens ?? { keys: [] };
  if (!keys.length || !row || start !== key) {
    const note = keys.length ? "" : "Zoom in to 512 keys or fewer to read the text here.";
    element("lines").replaceChildren(make("p", { className: "quiet", textContent: note }));
    return;
  }
  const most = Math.max(...row, 1e-9);
  const words = keys.map((text, place) => {
    const word = make("button", { type: "button", className: key + place === pageState.cell.key ? "tok chosen" : "tok", title: `key ${key + place}, weight ${number(row[place])}` }, literal(text));
    word.style.setProperty("--share", (row[place] / most).toFixed(3));
    word.addEventListener("click", () => choose("key", key + place));
    return word;
  });
  element("lines").replaceChildren(make("div", { className: "strip", role: "group", ariaLabel: "Keys of the window, shaded by weight" }, ...words));
}

function showTopTokens() {
  const { from, to, query, key } = pageState.top_tokens;
  const stack = pageState.head.stack;
  const title = (id, before, token, after) => element(id).replaceChildren(before, literal(token), after);
  title("from-heading", "", query, " attends to");
  title("to-heading", "", key, " receives attention from");
  const tokens = (found, side) =>
    make("td", {}, ...found.map(([place, text, weight]) => {
      const shown = make("span", { className: "key", title: `${side} ${place}: ${number(weight)}` }, literal(text), ` ${fixed(weight)}`);
      shown.style.setProperty("--share", Math.min(1, weight).toFixed(3));
      return shown;
    }));
  const list = (id, found, side) => {
    const rows = found.heads.map(([layer, head, tops]) => {
      const button = make("button", { type: "button", className: "place", textContent: `layer ${layer}, head ${head}` });
      button.addEventListener("click", () => ask("go", { ...textAsked(), head: `${stack}.${layer}.${head}` }));
      const chosen = layer === pageState.head.layer && head === pageState.head.head;
      return make("tr", { className: chosen ? "chosen" : "" }, make("th", { scope: "row" }, button), tokens(tops, side));
    });
    const all = found.everywhere && make("tr", {}, make("th", { scope: "row", textContent: "mean of all heads" }), tokens(found.everywhere, side));
    element(id).replaceChildren(make("tbody", {}, ...[all, ...rows].filter(Boolean)));
  };
  list("from", from, "key");
  element("to").closest("div").parentElement.hidden = !to; // reports of longer texts do not store columns
  if (to) list("to", to, "query");
}
