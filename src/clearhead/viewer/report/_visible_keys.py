"""Keys that each query may attend to. A report stores them, so that its page paints no masked cell."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Int

from clearhead.analysis.statistics import is_masked_by_ranges
from clearhead.viewer._thumbnails import MAX_EXACT_TOKENS
from clearhead.weights.matrix import AttentionWeights

MAX_RANGES = 2**22  # of all queries of a layer
ROWS_PER_STRIP = 128  # queries whose scores are computed at a time


@torch.no_grad()
def visible_ranges(weights: AttentionWeights) -> Int[np.ndarray, "ranges 2 q_len"] | None:
    """Return the ranges of keys that each query of a layer may attend to in at least one head.

    Returns None if no key is masked, or if the ranges would take too much time or memory.
    """
    _, _, q_len, kv_len = weights.shape
    if is_masked_by_ranges(weights):
        lowered = weights.lowered_mask.ranges
        return None if lowered is None else lowered[:, :, 0].cpu().numpy()
    if max(q_len, kv_len) > MAX_EXACT_TOKENS:
        return None
    strips = (weights.scores[0, :, row : row + ROWS_PER_STRIP] for row in range(0, q_len, ROWS_PER_STRIP))
    visible = torch.cat([(scores > -torch.inf).any(dim=0) for scores in strips]).cpu().numpy()
    return None if visible.all() else _ranges_of(visible)


def packed(ranges: Int[np.ndarray, "ranges 2 q_len"]) -> bytes:
    """Return the ranges as differences from query to query (int32), which compress well."""
    return np.diff(ranges, axis=2, prepend=0).astype(np.int32).tobytes()


def _ranges_of(visible: Bool[np.ndarray, "q_len kv_len"]) -> Int[np.ndarray, "ranges 2 q_len"] | None:
    q_len, kv_len = visible.shape
    steps = np.diff(visible.astype(np.int8), axis=1, prepend=0, append=0)
    counts = (steps == 1).sum(axis=1)
    if counts.max() * q_len > MAX_RANGES:
        return None
    ranges = np.full((counts.max(), 2, q_len), kv_len)
    order = np.concatenate([np.arange(count) for count in counts])
    for side, step in enumerate((1, -1)):
        rows, edges = np.nonzero(steps == step)
        ranges[order, side, rows] = edges
    return ranges
