"""Exact weights and scores of any outer selection of the matrix, computed in strips of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from clearhead.ops import dispatch, reference
from clearhead.ops.call import AttentionCall
from clearhead.ops.masks import LoweredMask
from clearhead.ops.selection import as_sequence, narrow, take
from clearhead.ops.statistics import PoolSpec
from clearhead.ops.tiled import backend as tiled
from clearhead.weights.indexing import Selection

WAYS_OUT = "take a .part() or fewer rows, .pool() to screen size, .topk(), a product with @, or .mean_heads()"
MAX_CELLS = 2**28  # default limit of a dense result: 1 GiB in float32
CELLS_PER_STRIP = 2**22

Compute = Callable[[AttentionCall, LoweredMask, Selection], Tensor]


def weights_at(
    call: AttentionCall, lse: Float[Tensor, "all_batch all_heads q_len"], selection: Selection
) -> Float[Tensor, "batch heads rows keys"]:
    """Return the exact weights of a selection; differentiable."""

    def compute(call: AttentionCall, lowered: LoweredMask, selection: Selection) -> Tensor:
        return _weights(call, lowered, lse, selection)

    return _in_strips(call, selection, compute)


def scores_at(call: AttentionCall, selection: Selection) -> Float[Tensor, "batch heads rows keys"]:
    """Return the exact scores of a selection, −inf where masked; differentiable."""
    return _in_strips(call, selection, _scores)


def diagonal_weights(
    call: AttentionCall, lse: Float[Tensor, "batch heads q_len"], offset: int
) -> Float[Tensor, "batch heads q_len"]:
    """Return the weight that each query gives to the key `offset` positions from it; differentiable."""
    lse = tiled.log_sum_exp(call) if call.scores_require_grad() else lse
    return torch.exp(reference.diagonal_scores(call, call.lower(), offset) - finite_lse(lse))


def finite_lse(lse: Float[Tensor, "*rows"]) -> Float[Tensor, "*rows"]:
    """Return lse with 0 in rows without a key: their scores are −inf, and −inf − (−inf) would be nan."""
    return torch.where(lse == -torch.inf, 0.0, lse)


def refuse_above(limit: int, lengths: Sequence[int]) -> None:
    """Raise if a result would have more cells than a limit."""
    cells = math.prod(lengths)
    if cells > limit:
        raise ValueError(
            f"{' × '.join(str(n) for n in lengths)} = {cells:,} weights are more than the limit of {limit:,};"
            f" {WAYS_OUT}; .dense(limit=…) raises the limit"
        )


def _in_strips(call: AttentionCall, selection: Selection, compute: Compute) -> Tensor:
    """Compute a selection; raise if it has more cells than the GPU has memory for."""
    try:
        return _compute_strips(call, selection, compute)
    except torch.OutOfMemoryError as error:
        size = math.prod(selection.lengths) * call.compute_dtype.itemsize / 2**30
        raise torch.OutOfMemoryError(
            f"{' × '.join(str(n) for n in selection.lengths)} weights take {size:.1f} GiB, and {call.query.device} has"
            f" too little free memory; {WAYS_OUT}, or move the matrix with .to('cpu')"
        ) from error


def _compute_strips(call: AttentionCall, selection: Selection, compute: Compute) -> Tensor:
    """Compute a selection in strips of rows, or all rows at once if gradients are required."""
    lengths = selection.lengths
    if 0 in lengths:
        return torch.empty(lengths, dtype=call.compute_dtype, device=call.query.device)
    lowered = call.lower()
    if call.scores_require_grad():
        return compute(call, lowered, selection)
    result = torch.empty(lengths, dtype=call.compute_dtype, device=call.query.device)
    size = max(1, CELLS_PER_STRIP // (lengths[0] * lengths[1] * lengths[3]))
    for start in range(0, lengths[2], size):
        strip = slice(start, start + size)
        result[:, :, strip] = compute(call, lowered, selection._replace(rows=narrow(selection.rows, strip)))
    return result


def _scores(call: AttentionCall, lowered: LoweredMask, selection: Selection) -> Float[Tensor, "batch heads rows keys"]:
    batch, heads, rows, keys = selection
    return reference.scores(call, lowered, batch=batch, heads=heads, rows=rows, keys=keys)


def _weights(
    call: AttentionCall, lowered: LoweredMask, lse: Float[Tensor, "_ _ q_len"], selection: Selection
) -> Float[Tensor, "batch heads rows keys"]:
    batch, heads, rows, _ = selection
    if call.scores_require_grad():  # the stored lse is detached, so compute it again over all keys of the rows
        row_lse = _differentiable_lse(call, lowered, selection)
    elif (window := selection.window()) is not None and dispatch.differs_in_tf32(call):
        # in TF32 the scores must be rounded as in the kernel that computed lse, so that kernel computes the weights
        _, _, down, across = selection.lengths
        spec = PoolSpec(down, across, "mean")
        return dispatch.pool(_select(call, selection), take(lse, batch, heads), *window, spec)
    else:
        row_lse = take(lse, batch, heads, rows)
    return torch.exp(_scores(call, lowered, selection) - finite_lse(row_lse)[..., None])


def _differentiable_lse(
    call: AttentionCall, lowered: LoweredMask, selection: Selection
) -> Float[Tensor, "batch heads rows"]:
    """Return the log-sum-exp of the rows of a selection; differentiable in O(n) memory."""
    batch, heads, rows, _ = selection
    if isinstance(rows, slice) and rows.step == 1:
        return tiled.log_sum_exp(_select(call, selection).slice_queries(rows))

    # tiles are of consecutive rows, so others are computed in strips, which the backward pass computes again
    def compute(strip: slice) -> Float[Tensor, "batch heads strip"]:
        return reference.log_sum_exp(call, lowered, batch=batch, heads=heads, rows=narrow(rows, strip))

    length = selection.lengths[2]
    size = max(1, CELLS_PER_STRIP // (math.prod(selection.lengths[:2]) * call.shape[3]))
    strips = [slice(start, start + size) for start in range(0, length, size)]
    return torch.cat([checkpoint(compute, strip, use_reentrant=False) for strip in strips], dim=2)  # pyright: ignore


def _select(call: AttentionCall, selection: Selection) -> AttentionCall:
    return call.select(as_sequence(selection.batch), as_sequence(selection.heads))
