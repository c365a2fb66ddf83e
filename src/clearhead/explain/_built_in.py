"""Names of the built-in examples. Does not import torch, because `clearhead --help` must be fast."""

BUILT_IN = ("two-heads", "two-heads-projected", "song", "song-causal")
