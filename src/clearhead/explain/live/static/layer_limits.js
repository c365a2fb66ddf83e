// Limits of a layer on the live page, and checks of what a reader enters.

export const MAX_TOKENS = 12;
export const MAX_COLUMNS = 16; // of every matrix
export const MAX_HEADS = 8;
export const MAX_VALUE = 1e6;
export const MAX_WORD_LETTERS = 40;
export const MAX_VOCABULARY = 40; // rows of an embedding table

/** A change that the layer cannot have. The message is a sentence for the reader. */
export class LayerError extends Error {}

/** @param {string} what @param {number} value @returns {number} */
export function checkedValue(what, value) {
  if (typeof value !== "number" || !Number.isFinite(value) || Math.abs(value) > MAX_VALUE) {
    throw new LayerError(`${what} is ${value}; expected a number from −1,000,000 to 1,000,000`);
  }
  return value === 0 ? 0 : value; // without the sign of −0
}

/** @param {string[]} words @returns {string[]} */
export function checkedWords(words) {
  if (!words.length) throw new LayerError("there are no tokens; expected at least one");
  if (words.length > MAX_TOKENS) throw new LayerError(`there are ${words.length} tokens; expected at most ${MAX_TOKENS}`);
  const long = words.find((word) => [...word].length > MAX_WORD_LETTERS);
  if (long) throw new LayerError(`a token has ${[...long].length} letters; expected at most ${MAX_WORD_LETTERS}`);
  if (words.includes("")) throw new LayerError("a token is empty; expected at least one letter");
  return [...words];
}

/**
 * Run a change. A refused one gives the old layer and a message.
 * @param {Layer} layer @param {(layer: Layer) => Layer} change @returns {{ layer: Layer, message: string }}
 */
export function attempt(layer, change) {
  try {
    return { layer: change(layer), message: "" };
  } catch (error) {
    if (error instanceof LayerError) return { layer, message: error.message };
    throw error;
  }
}
