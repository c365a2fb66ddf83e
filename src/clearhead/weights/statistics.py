"""Statistics and pooling of the matrix, including cases that backends do not handle: empty matrices and k > kv_len."""

from __future__ import annotations

import operator
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from clearhead._utils.checks import describe
from clearhead.ops import dispatch
from clearhead.ops.call import AttentionCall
from clearhead.ops.statistics import AttentionStatistics, PoolSpec, StatisticsRequest, TopK
from clearhead.weights.cells import MAX_CELLS, refuse_above


@torch.no_grad()
def compute_statistics(
    call: AttentionCall, lse: Float[Tensor, "batch heads q_len"], request: StatisticsRequest
) -> AttentionStatistics:
    """Return the requested statistics, computed in one pass over the matrix."""
    kv_len, top, spec = call.shape[3], request.top, request.pool
    refuse_above(MAX_CELLS, (*call.shape[:3], top))
    if spec is not None:
        refuse_above(MAX_CELLS, (*call.shape[:2], spec.rows, spec.cols))
    empty = 0 in call.shape[2:]
    possible = replace(request, top=min(top, kv_len), pool=None if empty else spec)
    results = dispatch.statistics(call, lse, possible)
    if spec is not None and empty:
        results |= AttentionStatistics(pooled=_empty_pool(lse, spec))
    missing = top - kv_len
    if missing <= 0:
        return results
    weights, keys = results.top if "top" in results else TopK(*lse.new_empty((2, *call.shape[:3], 0)))
    return results | AttentionStatistics(top=TopK(pad(weights, (0, missing)), pad(keys.long(), (0, missing), value=-1)))


@torch.no_grad()
def pool(
    call: AttentionCall, lse: Float[Tensor, "batch heads q_len"], spec: PoolSpec, window: object
) -> Float[Tensor, "batch heads rows cols"]:
    """Reduce the matrix, or a rectangle of it, to bins."""
    _, _, q_len, kv_len = call.shape
    refuse_above(MAX_CELLS, (*call.shape[:2], spec.rows, spec.cols))
    if 0 in (q_len, kv_len):
        return _empty_pool(lse, spec)
    row, row_end, key, key_end = _corners(window, q_len, kv_len)
    return dispatch.pool(call, lse, slice(row, row_end), slice(key, key_end), spec)


def _empty_pool(lse: Float[Tensor, "batch heads q_len"], spec: PoolSpec) -> Float[Tensor, "batch heads rows cols"]:
    """Return the bins of a matrix without cells."""
    return lse.new_zeros((*lse.shape[:2], spec.rows, spec.cols))


def _corners(window: object, q_len: int, kv_len: int) -> tuple[int, int, int, int]:
    """Return the corners of a `window`; None is the whole matrix."""
    if window is None:
        return 0, q_len, 0, kv_len
    try:
        (row, row_end), (key, key_end) = window  # pyright: ignore[reportGeneralTypeIssues]
        row, row_end, key, key_end = (operator.index(corner) for corner in (row, row_end, key, key_end))
    except (TypeError, ValueError):
        expected = "((row, row_end), (key, key_end)) with ints"
        raise TypeError(f"window is {describe(window)}; expected {expected}") from None
    for name, start, end, length in (("rows", row, row_end, q_len), ("keys", key, key_end, kv_len)):
        if not 0 <= start < end <= length:
            raise ValueError(f"window takes {name} {start} to {end}; expected 0 ≤ start < end ≤ {length}")
    return row, row_end, key, key_end
