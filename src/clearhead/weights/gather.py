"""Scores and weights of single cells, chosen by their indices; differentiable."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from clearhead.ops import reference
from clearhead.ops.call import AttentionCall
from clearhead.ops.gradients import CellGradient
from clearhead.ops.tiled import backend as tiled
from clearhead.ops.tiled.cells import LargestCells
from clearhead.weights import autograd
from clearhead.weights.autograd import Grads, Lse, Tensors
from clearhead.weights.cells import finite_lse

CELLS_PER_STEP = 2**16  # each gathers a query and a key


class _LogSumExp:
    """Log-sum-exp, which is known already: its gradient with respect to score (i, j) is weight (i, j)."""

    def compute(self, call: AttentionCall, lse: Lse, inputs: Tensors) -> tuple[Tensor, ...]:
        return (lse.clone(),)

    def cell_gradient(
        self, call: AttentionCall, lse: Lse, inputs: Tensors, results: Tensors, grads: Grads
    ) -> tuple[CellGradient, Grads]:
        (grad,) = grads
        assert grad is not None
        return CellGradient(-grad), ()


def log_sum_exp(call: AttentionCall, lse: Lse) -> Lse:
    """Return log-sum-exp, differentiable in everything that the scores depend on."""
    return autograd.apply(_LogSumExp(), call, lse)[0]


def scores_of_cells(call: AttentionCall, index: Int[Tensor, "4 count"]) -> Float[Tensor, " count"]:
    """Return the scores of single cells, −inf where masked.

    They are computed a few at a time and, for gradients, again in the backward pass.
    """
    call = call.with_lowered_mask()
    parts = index.split(CELLS_PER_STEP, dim=1)
    if not call.scores_require_grad():
        return torch.cat([reference.scores_of_cells(call, part) for part in parts])
    scores = [checkpoint(reference.scores_of_cells, call, part, use_reentrant=False) for part in parts]
    return torch.cat(scores)  # pyright: ignore[reportArgumentType, reportCallIssue]


class WeightCells:
    """Single weights of a call, 0 where masked, with log-sum-exp and mask computed once."""

    def __init__(self, call: AttentionCall, lse: Lse) -> None:
        self.call = call.with_lowered_mask()
        self.lse = finite_lse(log_sum_exp(call, lse))

    def weights(self, index: Int[Tensor, "4 count"]) -> Float[Tensor, " count"]:
        return torch.exp(scores_of_cells(self.call, index) - self.lse[tuple(index[:3])])


def weights_of_cells(call: AttentionCall, lse: Lse, index: Int[Tensor, "4 count"]) -> Float[Tensor, " count"]:
    """Return the weights of single cells, 0 where masked."""
    return WeightCells(call, lse).weights(index)


def largest_weights(call: AttentionCall, lse: Lse, rows: slice, keys: slice, size: tuple[int, int]) -> LargestCells:
    """Return the largest weight of each bin of a rectangle, differentiable, with its row and key."""
    with torch.no_grad():
        largest = tiled.largest_cells(call, lse, rows, keys, size)
    sequences, heads = (torch.arange(n, device=lse.device) for n in largest.rows.shape[:2])
    index = torch.broadcast_tensors(sequences[:, None, None, None], heads[:, None, None], largest.rows, largest.keys)
    values = weights_of_cells(call, lse, torch.stack(index).flatten(1)).view(largest.rows.shape)
    return largest._replace(weights=torch.where(largest.weights > 0, values, 0.0))  # row and key of others are 0


def index_of_keys(keys: Int[Tensor, "batch heads q_len count"]) -> Int[Tensor, "4 cells"]:
    """Return the index of the cells that each query has with some keys."""
    index = torch.stack(torch.meshgrid(*(torch.arange(n, device=keys.device) for n in keys.shape), indexing="ij"))
    return torch.stack([*index[:3], keys.long()]).flatten(1)
