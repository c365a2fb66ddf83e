"""Matrices of consecutive calls with a KV cache, joined into one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from clearhead.ops.call import AttentionCall
from clearhead.weights.cells import MAX_CELLS
from clearhead.weights.matrix import AttentionWeights


def join_rows(
    matrices: Sequence[AttentionWeights], offsets: Sequence[int], kv_len: int, query_start: int
) -> AttentionWeights:
    """Return one matrix with the rows of several, without gradients.

    The result holds the scores of all cells. Keys that a matrix does not have are masked in its rows.

    Args:
        matrices: matrices of the same sequences and heads.
        offsets: position of the first key of each matrix.
        kv_len: number of keys of the result. Keys beyond are dropped; they have to be masked, as the end of a static
            KV cache is.
        query_start: position of the first query among the keys.

    Raises:
        ValueError: if the result has more cells than `dense()` allows.
    """
    batch, heads = matrices[0].shape[:2]
    q_len = sum(weights.shape[2] for weights in matrices)
    cells = math.prod((batch, heads, q_len, kv_len))
    if cells > MAX_CELLS:
        raise ValueError(
            f"the joined matrix has {cells:,} cells ({batch} × {heads} heads × {q_len} × {kv_len}); expected at most"
            f" {MAX_CELLS:,}: choose fewer heads or sequences"
        )
    scores = matrices[0].lse.new_full((batch, heads, q_len, kv_len), -torch.inf)
    start = 0
    for weights, offset in zip(matrices, offsets, strict=True):
        rows, keys = weights.shape[2], min(weights.shape[3], kv_len - offset)
        scores[:, :, start : start + rows, offset : offset + keys] = weights.scores[..., :keys]
        start += rows
    lse = torch.cat([weights.lse for weights in matrices], dim=2)
    query, key = (scores.new_empty((batch, heads, length, 0)) for length in (q_len, kv_len))
    call = AttentionCall(query, key, None, None, scores, 1.0, None, None, 0.0, query_start, None)
    # with sinks, log-sum-exp is not that of the scores
    return AttentionWeights(call, lse, normalized=all(weights._checked().sinks is None for weights in matrices))
