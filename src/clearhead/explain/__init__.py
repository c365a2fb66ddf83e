"""Worked examples: any attention calculation step by step with its real numbers, written out and checked."""

BUILT_IN = ("two-heads", "two-heads-projected", "song", "song-causal")
