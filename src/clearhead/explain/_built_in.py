"""Names and descriptions of the built-in examples. Does not import torch, because `clearhead --help` must be fast."""

BUILT_IN = {
    "two-heads": "a text on multi-head attention with two heads that read slices of the input, with its errors",
    "two-heads-projected": "the same text, read as two heads that project the whole input",
    "song": "a text that follows one sentence through one head, with its errors",
    "song-causal": "the same text with its causal mask",
    "three-by-four": "whole numbers and no scaling: the smallest self-attention",
    "score-112": "one row of attention: 112 / 8 = 14, and softmax makes 0.88 of it",
    "causal-decoder": "a decoder that hides the words to the right, with two heads",
    "cross-attention": "a translation that attends to its source: every size differs",
    "grouped-heads": "four heads that share two keys and values (GQA)",
    "embeddings": "words looked up in a table, sinusoidal positions added",
}
