"""Lazy attention matrix."""

from clearhead.weights.matrix import AttentionWeights, Scores

__all__ = ["AttentionWeights", "Scores"]
