// -- the URL fragment: text, head, window and cell --------------------------------------------------------------------

function fromAddress() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  const pair = (name) => (/^\d+-\d+$/.test(parameters.get(name) ?? "") ? parameters.get(name).split("-").map(Number) : undefined);
  const request = { head: parameters.get("head"), rows: pair("rows"), keys: pair("keys"), cursor: pair("cell"), text: parameters.get("text"), given: parameters.get("given") };
  return Object.fromEntries(Object.entries(request).filter(([, value]) => value !== null && value !== undefined));
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

// the text parameter of a request or an address; empty for the first listed text, which is the default
function textAsked() {
  const { text, chosen } = pageState.model;
  return chosen === null ? { text } : chosen ? { given: chosen } : {};
}

const inNotebook = location.protocol === "about:"; // a srcdoc frame, which has no URL to update
let going = true; // while following an address, which adds no history entry
let written; // timer of a pending address update
// debounced; a change of text, head or window adds a history entry, a change of the cell does not
function writeAddress() {
  clearTimeout(written);
  written = setTimeout(() => {
    written = undefined;
    const address = toAddress();
    const withoutCell = (hash) => hash.replace(/&cell=[^&]*/, "");
    const step = withoutCell(address) !== withoutCell(location.hash) && !going;
    if (address !== location.hash && !inNotebook) history[step ? "pushState" : "replaceState"](null, "", address);
    going = false;
  }, 300);
}

window.addEventListener("popstate", () => {
  clearTimeout(written);
  written = undefined;
  going = true;
  ask("go", fromAddress());
});
