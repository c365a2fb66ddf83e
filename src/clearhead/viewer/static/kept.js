// -- stored data of a report: the arrays of each layer, unpacked on first use -----------------------------------------------

// the value of each float16 bit pattern
const HALVES = Float32Array.from({ length: 65536 }, (_, bits) => {
  const [sign, exponent, fraction] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction);
});
const halves = (bits) => Float32Array.from(bits, (own) => HALVES[own]);

async function unpacked(id) {
  const bytes = Uint8Array.from(atob(element(id).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

const stackNamed = (name) => FACTS.stacks.find((stack) => stack.name === name);
const layers = new Map(); // "stack.layer" -> a promise of its heads

function layerKept(name, layer) {
  const place = `${name}.${layer}`;
  if (!layers.has(place)) layers.set(place, unpacked(`layer-${name}-${layer}`).then((buffer) => headsIn(buffer, stackNamed(name), layer)));
  return layers.get(place);
}

// the arrays are in the order of `ReportLayer.pack`
function headsIn(buffer, stack, layer) {
  const payload = stack.layers[layer];
  const [rows, keys] = [Math.ceil(stack.queries / stack.bins[0]), Math.ceil(stack.keys / stack.bins[1])];
  let at = 0;
  const take = (kind, size) => {
    const all = new kind(buffer, at, payload.length * size);
    at += all.byteLength;
    return (head) => all.subarray(head * size, (head + 1) * size);
  };
  const topKeys = take(stack.keys < 65536 ? Uint16Array : Uint32Array, stack.kept * stack.top);
  const topWeights = take(Uint16Array, stack.kept * stack.top);
  const entropy = take(Uint16Array, stack.kept);
  const received = take(Uint16Array, Math.ceil(stack.keys / stack.bar));
  const largest = take(stack.cells ? Uint16Array : Uint8Array, rows * keys);
  const mean = stack.cells ? largest : take(Uint8Array, rows * keys);
  return payload.map((own, head) => ({
    ...own,
    rows,
    keys,
    topKeys: topKeys(head),
    topWeights: topWeights(head),
    entropies: () => halves(entropy(head)),
    receipts: () => halves(received(head)).map((share) => share * own.received),
    values: (reduce) => weightsOf((reduce === "max" ? largest : mean)(head), stack),
    levels: stack.cells ? levelsOf(halves(largest(head)), stack.floor) : largest(head),
  }));
}

// shades 1 to 255 are weights from `floor` to 1 on a logarithmic scale; shade 0 is a weight of 0
const weightsOf = (map, { cells, floor }) => (cells ? halves(map) : Float32Array.from(map, (level) => (level ? floor ** (1 - level / 255) : 0)));
const levelsOf = (weights, floor) => Uint8Array.from(weights, (weight) => (weight ? Math.max(1, Math.min(255, Math.round(255 * (1 - Math.log(weight) / Math.log(floor))))) : 0));

// the largest weights of a query, or of the nearest stored query
function largestOf(own, stack, query) {
  const nearest = stack.places ? stack.places.reduce((best, place, at) => (Math.abs(place - query) < Math.abs(stack.places[best] - query) ? at : best), 0) : query;
  const tops = [];
  for (let at = nearest * stack.top; at < (nearest + 1) * stack.top; at++) {
    const weight = HALVES[own.topWeights[at]];
    if (weight > 0) tops.push([own.topKeys[at], textOf(stack, "key", own.topKeys[at]), weight]);
  }
  return { query: stack.places ? stack.places[nearest] : query, tops };
}

let texts; // token lists
const textOf = (stack, side, place) => texts[stack.tokens[side === "query" ? 0 : 1]][place];
