// Boxes of the Transformer's picture: position, what goes in and comes out, shapes, and the page of the course.
// The shapes are those of the bundled translator for "The cat ate the fish.": 7 tokens in each language, d_model 256.

/**
 * @typedef {{ id: string, text: string[], kind: string, side: "encoder" | "decoder", row: number, height?: number,
 *   input: string, output: string, shapes: string, does: string, links: [string, string][] }} Box
 *   row: distance from the bottom of the picture, in rows; links: page of the course (with #section) and text
 */

/** @type {Omit<Box, "id" | "side" | "row">} */
const NORM = {
  text: ["Add & norm"],
  kind: "norm",
  input: "what went into the box below, and what came out of it",
  output: "their sum, with each row brought to mean 0 and variance 1, then scaled by learned factors and moved by a learned shift",
  shapes: "(7, 256) + (7, 256) → (7, 256)",
  does: "The sum is a shortcut around the box: the box only has to compute a change of its input. The picture follows the paper of 2017. The bundled model normalizes before each box instead, as most models do now.",
  links: [["08-transformer#add-norm-feed-forward", "See what this box computes, below"]],
};
/** @type {Omit<Box, "id" | "side" | "row">} */
const FEED_FORWARD = {
  text: ["Feed-forward"],
  kind: "feed",
  input: "one row for each token",
  output: "one row for each token",
  shapes: "(7, 256) × (256, 1024), ReLU, × (1024, 256) → (7, 256)",
  does: "Two matrices with a ReLU between them. The box works on each token alone: only attention moves information between tokens.",
  links: [["08-transformer#add-norm-feed-forward", "See what this box computes, below"]],
};
/** @type {Omit<Box, "id" | "side" | "row">} */
const POSITIONS = {
  text: ["+ positions"],
  kind: "input",
  input: "one row for each token, without order",
  output: "the same rows, each with the numbers of its position added",
  shapes: "(7, 256) + (7, 256) → (7, 256)",
  does: "Without this sum, attention would treat a sentence as a bag of words.",
  links: [["01-words", "Page 1 lets you shuffle the words"]],
};

/** @type {Box[]} in reading order: the encoder from below, then the decoder from below */
export const BOXES = [
  { id: "source-embedding", text: ["Embedding"], kind: "input", side: "encoder", row: 0, input: "the numbers of 7 tokens in the vocabulary", output: "one row of 256 numbers for each token", shapes: "7 of (8000, 256) → (7, 256)", does: "A table with one learned row for each of the 8,000 tokens. The box looks the rows up.", links: [["01-words", "Page 1 explains words as vectors"]] },
  { id: "source-positions", ...POSITIONS, side: "encoder", row: 1 },
  { id: "self-attention", text: ["Multi-head", "self-attention"], kind: "attention", side: "encoder", row: 2.4, height: 2, input: "one row for each source token", output: "one row for each source token", shapes: "8 heads: Q, K, V (7, 32), A (7, 7); side by side (7, 256)", does: "Each token of the source reads all tokens of the source. Queries, keys and values come from the same rows.", links: [["03-one-head", "Page 3 calculates one head"], ["06-many-heads", "Page 6 has several"], ["07-output", "Page 7 joins their outputs"]] },
  { id: "encoder-norm-1", ...NORM, side: "encoder", row: 4.4 },
  { id: "encoder-feed", ...FEED_FORWARD, side: "encoder", row: 5.4 },
  { id: "encoder-norm-2", ...NORM, side: "encoder", row: 6.4 },
  { id: "target-embedding", text: ["Embedding"], kind: "input", side: "decoder", row: 0, input: "the tokens that are written already, after a start token", output: "one row of 256 numbers for each token", shapes: "7 of (8000, 256) → (7, 256)", does: "The decoder reads its earlier output: it writes one token, adds it here, and runs again. In training all rows run at once.", links: [["01-words", "Page 1 explains words as vectors"]] },
  { id: "target-positions", ...POSITIONS, side: "decoder", row: 1 },
  { id: "masked-attention", text: ["Masked multi-head", "self-attention"], kind: "attention", side: "decoder", row: 2.4, height: 2, input: "one row for each written token", output: "one row for each written token", shapes: "8 heads: Q, K, V (7, 32), A (7, 7), upper right hidden", does: "Each token reads itself and the tokens before it. The mask hides the rest, because they are not written yet.", links: [["05-masks", "Page 5 switches the mask on and off"], ["04-scaling", "Page 4 explains the division by √d"], ["06-many-heads", "Page 6 has several heads"]] },
  { id: "decoder-norm-1", ...NORM, side: "decoder", row: 4.4 },
  { id: "cross-attention", text: ["Multi-head", "cross-attention"], kind: "attention", side: "decoder", row: 5.4, height: 2, input: "queries from the decoder; keys and values from the encoder's output", output: "one row for each written token", shapes: "Q (7, 32), K and V (7, 32), A (7, 7): a row for each Japanese token, a column for each English token", does: "The translation reads the source here, and nowhere else. The live part below is one such head.", links: [["08-transformer#cross-attention", "See cross-attention below"], ["06-many-heads", "Page 6 has several heads"]] },
  { id: "decoder-norm-2", ...NORM, side: "decoder", row: 7.4 },
  { id: "decoder-feed", ...FEED_FORWARD, side: "decoder", row: 8.4 },
  { id: "decoder-norm-3", ...NORM, side: "decoder", row: 9.4 },
  { id: "linear", text: ["Linear"], kind: "output", side: "decoder", row: 10.9, input: "one row of 256 numbers for each written token", output: "one score for each token of the vocabulary", shapes: "(7, 256) × (256, 8000) → (7, 8000)", does: "A dot product of each row with the row of every token. The bundled model uses its embedding table here again.", links: [["02-likeness", "Page 2 explains dot products"]] },
  { id: "softmax", text: ["Softmax"], kind: "output", side: "decoder", row: 11.9, input: "one score for each token of the vocabulary", output: "one probability for each token of the vocabulary", shapes: "(7, 8000) → (7, 8000), each row sums to 1", does: "The last row gives the next token. Training compares each row with the token that should come next.", links: [["09-training", "Page 9 turns this into a loss"]] },
];
