// Search of normalized tokens, with the results of `_search.py`.

const MAX_HITS = 1000;

// white space of Python, which differs from \s
const SPACE = "[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]";
const [SPACES, FIRST, LAST] = [new RegExp(`${SPACE}+`, "g"), new RegExp(`^${SPACE}`), new RegExp(`${SPACE}$`)];

/** Return text without differences of case and width. Each character is folded alone. @param {string} text */
const folded = (text) => [...text.normalize("NFKC")].map((character) => character.toUpperCase().toLowerCase()).join("");

/** Return folded text, with single spaces if tokens contain spaces, and otherwise without spaces. @param {string} text @param {boolean} spaced */
export function normalized(text, spaced) {
  const letters = folded(text);
  if (!spaced) return letters.replace(SPACES, "");
  const inner = letters.replace(SPACES, " ").replace(/^ | $/g, "");
  if (!inner) return letters ? " " : "";
  return `${FIRST.test(letters) ? " " : ""}${inner}${LAST.test(letters) ? " " : ""}`;
}

/**
 * Return the ranges of tokens that contain a text: the first 1,000, and the number of all.
 * @param {{ pieces: string[], spaced: boolean }} tokens normalized tokens
 * @param {string} text
 */
export function findText({ pieces, spaced }, text) {
  const wanted = normalized(text, spaced);
  const whole = pieces.join("");
  const starts = [0];
  for (const piece of pieces) starts.push(starts[starts.length - 1] + piece.length);
  /** @type {[number, number][]} */
  const ranges = [];
  let [count, token, last] = [0, 0, ""];
  for (let at = wanted.replaceAll(" ", "") ? whole.indexOf(wanted) : -1; at >= 0; at = whole.indexOf(wanted, at + wanted.length)) {
    while (starts[token + 1] <= at) token++;
    let end = token + 1;
    while (starts[end] < at + wanted.length) end++;
    const hit = `${token} ${end}`; // a token may contain the text several times
    if (hit !== last) count++;
    if (hit !== last && ranges.length < MAX_HITS) ranges.push([token, end]);
    last = hit;
  }
  return { ranges, count };
}
