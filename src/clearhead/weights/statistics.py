"""Statistics and pooling of the matrix, including cases that backends do not handle: empty matrices and k > kv_len."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from clearhead._utils.checks import describe
from clearhead.ops import dispatch
from clearhead.ops.call import AttentionCall
from clearhead.ops.statistics import AttentionStatistics, PoolSpec, StatisticsOptions, StatisticsRequest, TopK
from clearhead.weights.autograd import Lse
from clearhead.weights.cells import MAX_CELLS, refuse_above
from clearhead.weights.differentiable_statistics import pooled, sum_statistics
from clearhead.weights.gather import index_of_keys, scores_of_cells, weights_of_cells

if TYPE_CHECKING:
    from clearhead.weights.matrix import AttentionWeights


def observe_with_entropy(weights: AttentionWeights, **statistics: Unpack[StatisticsOptions]) -> AttentionStatistics:
    """Return statistics and the entropy, which for a scaled matrix is that of the unscaled one."""
    if weights.unscaled is weights:
        return weights.observe(**(statistics | {"entropy": True}))
    return weights.observe(**statistics) | weights.unscaled.observe(entropy=True)


def entropy_of_rows(
    weights: AttentionWeights, parts: Sequence[slice], rows: Float[Tensor, "rows kv_len"]
) -> Float[Tensor, " rows"]:
    """Return the entropy of some rows of one head, which for a scaled matrix is that of the unscaled one.

    Args:
        weights: matrix of one head, `[1, 1, q_len, kv_len]`.
        parts: queries of the rows.
        rows: weights of these queries.
    """
    if weights.unscaled is not weights:
        rows = torch.cat([weights.unscaled[0, 0, part] for part in parts])
    return torch.special.entr(rows).sum(dim=-1)


def compute_statistics(call: AttentionCall, lse: Lse, request: StatisticsRequest) -> AttentionStatistics:
    """Return the requested statistics; differentiable. Without gradients, most take one pass over the matrix."""
    top, spec = request.top, request.pool
    refuse_above(MAX_CELLS, (*call.shape[:3], top))
    if request.spans is not None:
        refuse_above(MAX_CELLS, (*call.shape[:3], len(request.spans)))
    if spec is not None:
        refuse_above(MAX_CELLS, (*call.shape[:2], spec.rows, spec.cols))
    with_grad = call.scores_require_grad()
    with torch.no_grad():
        sums = request if not with_grad else StatisticsRequest()
        results = _without_grad(call, lse, replace(sums, top=max(top, int(request.peak)), peak=False))
    if with_grad:
        results |= sum_statistics(call, lse, request)
        if spec is not None:
            results |= AttentionStatistics(pooled=pool(call, lse, spec, None))
    if request.peak:
        results |= AttentionStatistics(peak=_peaks(call, lse, results.top))
    if top and with_grad:
        keys = results.top.keys
        results |= AttentionStatistics(top=TopK(_weights_of_keys(call, lse, keys), keys))
    return results if top or not request.peak else results.without("top")


def _without_grad(call: AttentionCall, lse: Lse, request: StatisticsRequest) -> AttentionStatistics:
    """Return statistics of any matrix, also for an empty one and more keys than there are."""
    kv_len, top, spec = call.shape[3], request.top, request.pool
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


def _peaks(call: AttentionCall, lse: Lse, top: TopK) -> Lse:
    """Return the score of each query and its largest key; −inf for key −1, and NaN in a row with NaN."""
    keys = top.keys[..., 0]
    if call.shape[3] == 0:
        return call.query.new_full(keys.shape, -torch.inf, dtype=call.compute_dtype)
    index = index_of_keys(keys.clamp(min=0)[..., None])
    peaks = torch.where(keys >= 0, scores_of_cells(call, index).view(keys.shape), -torch.inf)
    # torch's kernels may return 0 or inf as the log-sum-exp of such a row, and the Triton kernel 0 as its weights
    return peaks.masked_fill(~(lse < torch.inf) | top.weights[..., 0].isnan(), torch.nan)


def _weights_of_keys(
    call: AttentionCall, lse: Lse, keys: Int[Tensor, "batch heads q_len top"]
) -> Float[Tensor, "batch heads q_len top"]:
    """Return the weights of chosen keys of each query, 0 for key −1; differentiable."""
    if call.shape[3] == 0:
        return lse.new_zeros(keys.shape)
    values = weights_of_cells(call, lse, index_of_keys(keys.clamp(min=0)))
    return torch.where(keys >= 0, values.view(keys.shape), 0.0)


def pool(call: AttentionCall, lse: Lse, spec: PoolSpec, window: object) -> Float[Tensor, "batch heads rows cols"]:
    """Reduce the matrix, or a rectangle of it, to bins; differentiable."""
    _, _, q_len, kv_len = call.shape
    refuse_above(MAX_CELLS, (*call.shape[:2], spec.rows, spec.cols))
    if 0 in (q_len, kv_len):
        return _empty_pool(lse, spec)
    row, row_end, key, key_end = _corners(window, q_len, kv_len)
    rows, keys = slice(row, row_end), slice(key, key_end)
    if call.scores_require_grad():
        return pooled(call, lse, rows, keys, spec)
    with torch.no_grad():
        return dispatch.pool(call, lse, rows, keys, spec)


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
