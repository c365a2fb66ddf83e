// -- the address: text, head, window and cell stand in its fragment --------------------------------------------------------

function fromAddress() {
  const said = new URLSearchParams(location.hash.slice(1));
  const pair = (name) => (/^\d+-\d+$/.test(said.get(name) ?? "") ? said.get(name).split("-").map(Number) : undefined);
  const found = { head: said.get("head"), rows: pair("rows"), keys: pair("keys"), cursor: pair("cell"), text: said.get("text"), given: said.get("given") };
  return Object.fromEntries(Object.entries(found).filter(([, value]) => value !== null && value !== undefined));
}

function toAddress() {
  const { stack, layer, head } = pageState.head;
  const { queries, keys } = stackShown();
  const [row, rowEnd, key, keyEnd] = windowShown();
  const parts = new URLSearchParams({ head: `${stack}.${layer}.${head}` });
  if (rowEnd - row < queries) parts.set("rows", `${row}-${rowEnd}`);
  if (keyEnd - key < keys) parts.set("keys", `${key}-${keyEnd}`);
  if (pageState.cell) parts.set("cell", `${pageState.cell.query}-${pageState.cell.key}`);
  for (const [name, value] of Object.entries(textAsked())) parts.set(name, value);
  return `#${parts}`;
}

// which text is shown, as a request or an address says it; the first that was given goes without saying
function textAsked() {
  const { text, chosen } = pageState.model;
  return chosen === null ? { text } : chosen ? { given: chosen } : {};
}

const inNotebook = location.protocol === "about:"; // where a page has no address of its own
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
    if (place !== location.hash && !inNotebook) history[step ? "pushState" : "replaceState"](null, "", place);
    going = false;
  }, 300);
}

window.addEventListener("popstate", () => {
  clearTimeout(written);
  written = undefined;
  going = true;
  ask("go", fromAddress());
});
