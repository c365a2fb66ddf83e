"""Functions of whole rows, computed a strip of rows at a time; differentiable in O(n) memory.

For gradients, each strip is computed again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from clearhead.ops import reference
from clearhead.ops.call import AttentionCall
from clearhead.ops.selection import ALL, Indices, take
from clearhead.weights.autograd import Lse
from clearhead.weights.cells import CELLS_PER_STRIP, finite_lse
from clearhead.weights.gather import log_sum_exp


class WeightRows:
    """Weights of a call by rows, with log-sum-exp computed once."""

    def __init__(self, call: AttentionCall, lse: Lse) -> None:
        self.call, self.lowered = call, call.lower()
        self.lse = finite_lse(log_sum_exp(call, lse))

    def scores(self, rows: Indices) -> Float[Tensor, "batch heads rows kv_len"]:
        """Return scores, −inf where masked."""
        return reference.scores(self.call, self.lowered, rows=rows)

    def weights(self, rows: Indices) -> Float[Tensor, "batch heads rows kv_len"]:
        return torch.exp(self.scores(rows) - take(self.lse, ALL, ALL, rows)[..., None])


def log_of_positive(weights: Tensor) -> Tensor:
    """Return ln A, or 0 where A is 0, so that A · ln A has a finite gradient."""
    return torch.where(weights > 0, weights, 1.0).log()


def by_strips(compute: Callable[[slice], Tensor], shape: tuple[int, ...], *, with_grad: bool) -> Tensor:
    """Return the results of a function for all strips of rows, joined along axis 2.

    Args:
        compute: takes a slice of rows.
        shape: shape of the matrix `[batch, heads, q_len, kv_len]` that the function computes for all rows.
        with_grad: compute strips again in the backward pass, instead of storing what it needs.
    """
    batch, heads, q_len, kv_len = shape
    size = max(1, CELLS_PER_STRIP // max(1, batch * heads * kv_len))
    strips = [slice(start, min(start + size, q_len)) for start in range(0, q_len, size)] or [slice(0, 0)]
    if with_grad:
        return torch.cat([checkpoint(compute, rows, use_reentrant=False) for rows in strips], dim=2)  # pyright: ignore
    with torch.no_grad():
        return torch.cat([compute(rows) for rows in strips], dim=2)
