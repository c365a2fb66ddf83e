// -- helpers shared by all parts of the page --------------------------------------------------------------------------

const element = (id) => document.getElementById(id);

// strings become text nodes, never markup; undefined children are skipped
function make(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children.filter((child) => child !== undefined));
  return made;
}
const literal = (text) => make("bdi", { textContent: text });

function number(value, digits = 4) {
  if (value === null || value === undefined) return "";
  if (value === -Infinity) return "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size < 1e-3 || size >= 1e5 ? value.toExponential(digits - 1) : value.toPrecision(digits);
  return text.replaceAll("-", "−");
}
const fixed = (value, digits = 2) => value.toFixed(digits).replace(/^-(?=0\.0*$)/, "").replace("-", "−");

let pageState; // state of the page; set once the page is connected

const nameOf = (stack) => ({ encoder: "Encoder", decoder: "Decoder", cross: "Cross-attention" })[stack] ?? stack;
