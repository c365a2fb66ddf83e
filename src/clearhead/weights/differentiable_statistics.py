"""Statistics of the matrix with gradients, in O(n) memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.ops import dispatch
from clearhead.ops.call import AttentionCall
from clearhead.ops.gradients import CellGradient
from clearhead.ops.statistics import AttentionStatistics, PoolSpec, StatisticsRequest
from clearhead.ops.tiled.pooling import mean_matrix
from clearhead.weights import autograd
from clearhead.weights.autograd import Grads, Lse, Tensors
from clearhead.weights.gather import largest_weights
from clearhead.weights.products import product

SUMS = ("entropy", "received", "distance", "mass")


@dataclass(frozen=True)
class _Sums:
    """Statistics that are sums over the matrix: entropy, received, distance and mass."""

    request: StatisticsRequest

    def compute(self, call: AttentionCall, lse: Lse, inputs: Tensors) -> tuple[Tensor, ...]:
        results = dispatch.statistics(call, lse, self.request)
        return tuple(getattr(results, name) for name in SUMS if name in results)

    def cell_gradient(
        self, call: AttentionCall, lse: Lse, inputs: Tensors, results: Tensors, grads: Grads
    ) -> tuple[CellGradient, Grads]:
        names = [name for name in SUMS if self.request.requests(name)]
        given = {name: grad for name, grad in zip(names, grads, strict=True) if grad is not None}
        values = dict(zip(names, results, strict=True))
        delta, columns = torch.zeros_like(lse), _Columns(call, lse)
        if "entropy" in given:  # −A ln A has the derivative −ln A − 1; without sinks, the constant cancels
            delta += given["entropy"] * values["entropy"]
            if call.sinks is not None:
                columns.add(-given["entropy"][..., None], torch.ones_like(lse[:1, :1, :1, None]))
                delta -= given["entropy"] * row_sums(call, lse)
        if "distance" in given:
            delta += given["distance"] * values["distance"]
        if "mass" in given:
            assert self.request.spans is not None
            columns.add(given["mass"], self.request.spans.members(call.shape[0], call.shape[3], lse)[:, None])
            delta += (given["mass"] * values["mass"]).sum(dim=-1)
        if "received" in given:
            grad = given["received"][..., None].to(call.query.dtype)  # a more precise one would take a slower kernel
            columns.add(torch.ones_like(lse[..., None]), grad.to(lse.dtype))
            delta += product(call, grad).squeeze(-1)
        left, right = columns.joined()
        log = -given["entropy"] if "entropy" in given else None
        return CellGradient(delta, left, right, log, given.get("distance")), ()


class _Columns:
    """Terms left[i] · right[j] of the gradient of a weight, collected from several statistics."""

    def __init__(self, call: AttentionCall, lse: Lse) -> None:
        self.call, self.rows = call, lse.shape
        self.terms: list[tuple[Tensor, Tensor]] = []

    def add(self, left: Float[Tensor, "batch heads q_len width"], right: Float[Tensor, "_ _ _ width"]) -> None:
        self.terms.append((left, right))

    def joined(self) -> tuple[Tensor | None, Tensor | None]:
        """Return all terms side by side; the right side has a head for each query head only if a term does."""
        if not self.terms:
            return None, None
        batch, heads, _, kv_len = self.call.shape
        per_head = any(right.shape[1] == heads for _, right in self.terms)
        shape = (batch, heads if per_head else self.call.key.shape[1], kv_len, -1)
        left = torch.cat([left for left, _ in self.terms], dim=-1)
        return left, torch.cat([right.expand(shape) for _, right in self.terms], dim=-1)


@dataclass(frozen=True)
class _MeanPool:
    """Mean of each bin of adaptive pooling over a rectangle: R · A · Cᵀ with matrices of 1 / width."""

    spec: PoolSpec
    rows: slice
    keys: slice

    def compute(self, call: AttentionCall, lse: Lse, inputs: Tensors) -> tuple[Tensor, ...]:
        return (dispatch.pool(call, lse, self.rows, self.keys, self.spec),)

    def cell_gradient(
        self, call: AttentionCall, lse: Lse, inputs: Tensors, results: Tensors, grads: Grads
    ) -> tuple[CellGradient, Grads]:
        (grad,) = grads
        assert grad is not None
        _, _, q_len, kv_len = call.shape
        down = mean_matrix(q_len, self.rows, self.spec.rows, lse)
        across = mean_matrix(kv_len, self.keys, self.spec.cols, lse)
        left, right = down.mT @ grad, across.mT.expand(call.shape[0], call.key.shape[1], -1, -1)
        return CellGradient((left * product(call, right)).sum(dim=-1), left, right), ()


def sum_statistics(call: AttentionCall, lse: Lse, request: StatisticsRequest) -> AttentionStatistics:
    """Return entropy, received, distance and mass as requested; differentiable."""
    request = replace(request, top=0, pool=None, peak=False)
    names = [name for name in SUMS if request.requests(name)]
    if not names:
        return AttentionStatistics()
    results: dict[str, Any] = dict(zip(names, autograd.apply(_Sums(request), call, lse), strict=True))
    return AttentionStatistics(**results)


def pooled(
    call: AttentionCall, lse: Lse, rows: slice, keys: slice, spec: PoolSpec
) -> Float[Tensor, "batch heads rows cols"]:
    """Return the weights of a rectangle, pooled into bins; differentiable.

    The gradient of a mean takes O(n · cols) memory. The gradient of a maximum goes to the first largest cell of a bin.
    """
    if spec.reduce == "mean":
        return autograd.apply(_MeanPool(spec, rows, keys), call, lse)[0]
    return largest_weights(call, lse, rows, keys, (spec.rows, spec.cols)).weights


def row_sums(call: AttentionCall, lse: Lse) -> Lse:
    """Return the sum of each row: 1, less the share of a sink; 0 without a key."""
    if call.sinks is None:
        return (lse > -torch.inf).to(lse.dtype)
    return 1 - torch.exp(call.sinks.to(lse.dtype)[:, None] - lse)
