"""Attention matrix with scaled columns: value-weighted attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead._utils.tensor_checks import check_float_tensor, has_readable_values
from clearhead.ops.selection import take
from clearhead.ops.spans import Spans, SpansLike
from clearhead.ops.statistics import AttentionStatistics, PoolSpec, Reduce, StatisticsOptions, StatisticsRequest, TopK
from clearhead.ops.tiled.pooling import mean_matrix
from clearhead.weights.gather import index_of_keys
from clearhead.weights.indexing import Selection, index_list
from clearhead.weights.lookup import Cells
from clearhead.weights.matrix import AttentionWeights, Choice
from clearhead.weights.mean_heads import MeanHeads
from clearhead.weights.threshold import MAX_CELLS_ABOVE, CellsAbove


class ScaledWeights(AttentionWeights):
    """Lazy matrix A · diag(factors), whose rows do not sum to 1; differentiable in A and in the factors.

    Searches, such as for the largest weights, read the same matrix as a call with the bias log(factors) and the old
    log-sum-exp. Gradients do not pass through that logarithm.
    """

    def __init__(self, weights: AttentionWeights, factors: Float[Tensor, "#batch #heads kv_len"]) -> None:
        call = weights._checked().map_tensors(Tensor.detach)
        if call.slopes is not None:
            raise ValueError("scaled() does not support ALiBi; take scaled() of a matrix with a tensor bias")
        logs = factors.detach().to(call.compute_dtype).log()[:, :, None]
        bias = call.tensor_bias
        bias = logs if bias is None else bias.to(logs.dtype) + logs
        super().__init__(replace(call, bias=bias), weights.lse, False, check_mutation=weights._fingerprints is not None)
        # a copy, because the caller may change the factors in place
        self._base, self._factors = weights, factors.to(weights.dtype, copy=True)

    @property
    def requires_grad(self) -> bool:
        return self._base.requires_grad or (torch.is_grad_enabled() and self._factors.requires_grad)

    @property
    def unscaled(self) -> AttentionWeights:
        return self._base

    # -- exact weights -------------------------------------------------------------------------------------------

    def diagonal(self, offset: int = 0) -> Float[Tensor, "batch heads q_len"]:
        batch, heads, q_len, kv_len = self.shape
        if kv_len == 0:
            return self._base.diagonal(offset)
        keys = (self._call.positions() + offset).clamp(0, kv_len - 1)[:, None].expand(batch, heads, q_len)
        return self._base.diagonal(offset) * self._factors.expand(batch, heads, kv_len).gather(-1, keys)

    # -- statistics ----------------------------------------------------------------------------------------------

    def entropy(self) -> NoReturn:
        raise ValueError(
            "entropy is not defined for scaled rows, which do not sum to 1; take weights.unscaled.entropy()"
        )

    def peak(self) -> Float[Tensor, "batch heads q_len"]:
        return self._base.peak()

    def received(self) -> Float[Tensor, "batch heads kv_len"]:
        return self._base.received() * self._factors

    def distance(self) -> Float[Tensor, "batch heads q_len"]:
        if self.requires_grad:
            raise ValueError("the distance of scaled rows has no gradient; call detach() first")
        return super().distance()

    def mass(self, spans: SpansLike) -> Float[Tensor, "batch heads q_len spans"]:
        members = Spans.checked(spans).members(self.shape[0], self.shape[3], self._lse)[:, None]
        return self @ members

    def topk(self, k: int) -> TopK:
        with torch.no_grad():
            top = super().topk(k)
        if not self.requires_grad or self.shape[3] == 0:
            return top
        index = index_of_keys(top.keys.clamp(min=0))
        return TopK(torch.where(top.keys >= 0, self._cells()(index).view(top.keys.shape), 0.0), top.keys)

    def above(self, threshold: float, *, limit: int = MAX_CELLS_ABOVE) -> CellsAbove:
        with torch.no_grad():
            cells = super().above(threshold, limit=limit)
        return cells._replace(values=self._cells()(cells.indices)) if self.requires_grad else cells

    def pool(
        self,
        rows: int,
        cols: int,
        *,
        reduce: Reduce = "mean",
        window: tuple[tuple[int, int], tuple[int, int]] | None = None,
    ) -> Float[Tensor, "batch heads rows cols"]:
        if not self.requires_grad or 0 in self.shape[2:]:
            return super().pool(rows, cols, reduce=reduce, window=window)
        spec = PoolSpec.checked(rows, cols, reduce)
        if spec.reduce == "max" or window is not None:
            raise ValueError("only means over the whole scaled matrix have a gradient; call detach() first")
        _, _, q_len, kv_len = self.shape
        down = mean_matrix(q_len, slice(0, q_len), spec.rows, self._lse)
        across = mean_matrix(kv_len, slice(0, kv_len), spec.cols, self._lse)
        return down @ (self @ across.mT)

    def observe(self, *, queries: slice | None = None, **statistics: Unpack[StatisticsOptions]) -> AttentionStatistics:
        request = StatisticsRequest.checked(**statistics)
        if request.entropy:
            self.entropy()
        if queries is not None:
            return self.part(queries=queries).observe(**statistics)
        pool, spans = request.pool, request.spans
        return AttentionStatistics(
            received=self.received() if request.received else None,
            distance=self.distance() if request.distance else None,
            peak=self.peak() if request.peak else None,
            mass=None if spans is None else self @ spans.members(self.shape[0], self.shape[3], self._lse)[:, None],
            top=self.topk(request.top) if request.top else None,
            pooled=None if pool is None else self.pool(pool.rows, pool.cols, reduce=pool.reduce),
        )

    def mean_heads(self, groups: int = 1) -> MeanHeads:
        return _MeanScaledHeads(self, groups)

    # -- parts ---------------------------------------------------------------------------------------------------

    def part(
        self, *, batch: Choice | None = None, heads: Choice | None = None, queries: slice | None = None
    ) -> AttentionWeights:
        chosen = self._base.part(batch=batch, heads=heads, queries=queries)
        factors = self._factors.expand(*self.shape[:2], -1)
        sequences, chosen_heads = index_list(batch, self.shape[0], 0), index_list(heads, self.shape[1], 1)
        return ScaledWeights(chosen, factors[sequences][:, chosen_heads])

    def detach(self) -> AttentionWeights:
        return ScaledWeights(self._base.detach(), self._factors.detach())

    def __reduce__(self) -> tuple:
        return ScaledWeights, (self._base, self._factors)

    # -- internals -----------------------------------------------------------------------------------------------

    def _map_tensors(self, function: Callable[[Tensor], Tensor]) -> AttentionWeights:
        return ScaledWeights(self._base._map_tensors(function), function(self._factors))

    def _block(self, selection: Selection) -> Float[Tensor, "batch heads rows keys"]:
        batch, heads, _, keys = selection
        factors = take(self._factors.expand(*self.shape[:2], -1), batch, heads, keys)
        return self._base._block(selection) * factors[:, :, None]

    def _cells(self) -> Cells:
        cells, factors = self._base._cells(), self._factors.expand(*self.shape[:2], -1)
        return lambda index: cells(index) * factors[index[0], index[1], index[3]]

    def _strips(self) -> Callable[[slice], Float[Tensor, "batch heads rows kv_len"]]:
        rows = self._base._strips()
        return lambda strip: rows(strip) * self._factors[:, :, None]

    def _column_maxima(self) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            values, rows = super()._column_maxima()
        if not self.requires_grad or 0 in self.shape:
            return values, rows
        batch, heads, _, keys = (torch.arange(n, device=rows.device) for n in values.shape)
        index = torch.broadcast_tensors(batch[:, None, None, None], heads[:, None, None], rows, keys)
        cells = self._cells()(torch.stack(index).flatten(1)).view(values.shape)
        return torch.where(values > 0, cells, 0.0), rows

    def _matmul(self, other: Tensor) -> Tensor:
        heads = other.shape[1]
        if heads > 1 and self._factors.shape[1] > heads:  # a factor of each head, other of each key head
            other = other.repeat_interleave(self.shape[1] // heads, dim=1)
        return self._base._matmul(other * self._factors[..., None].to(other.dtype))

    def _transposed_matmul(self, other: Tensor) -> Tensor:
        result = self._base._transposed_matmul(other)
        return result * self._factors[..., None].to(result.dtype)


class _MeanScaledHeads(MeanHeads):
    """Mean over heads of a matrix whose rows do not sum to 1."""

    def entropy(self) -> NoReturn:
        self._weights.entropy()
        raise AssertionError("scaled rows have no entropy")


def scaled(weights: AttentionWeights, keys: object) -> ScaledWeights:
    """Return the matrix with each column multiplied by a factor, after checking the factors."""
    batch, heads, _, kv_len = weights.shape
    expected = f"[kv_len = {kv_len}], or a shape that broadcasts to [{batch}, {heads}, {kv_len}]"
    factors = check_float_tensor("keys", keys, expected)
    shape = (*(1,) * (3 - factors.ndim), *factors.shape)
    if not 1 <= factors.ndim <= 3 or shape[0] not in (1, batch) or shape[1] not in (1, heads) or shape[2] != kv_len:
        raise ValueError(f"keys has shape {tuple(factors.shape)}; expected {expected}")
    if factors.device != weights.device:
        raise ValueError(f"keys is on {factors.device}; expected {weights.device}, the device of the weights")
    if has_readable_values(factors) and not bool(((factors >= 0) & (factors < torch.inf)).all()):
        raise ValueError("keys has a negative, infinite or undefined factor; expected finite factors of at least 0")
    return ScaledWeights(weights, factors.view(shape))


def value_norms(weights: AttentionWeights, output_weight: object) -> ScaledWeights:
    """Return the matrix scaled by the norm of each key's value, after the head's part of an output projection."""
    value = weights.value
    if value is None:
        raise ValueError(
            "the values were not kept (without_values); expected the weights that attention() or watch(values=True)"
            " returned"
        )
    heads, width = weights.shape[1], value.shape[3]
    value = value.to(weights.dtype)
    if output_weight is None:
        norms = value.norm(dim=-1).repeat_interleave(heads // value.shape[1], dim=1)
        return scaled(weights, norms)
    expected = f"[model_dim, heads · value_dim = {heads * width}], as in torch.nn.Linear"
    matrix = check_float_tensor("output_weight", output_weight, expected)
    if matrix.ndim != 2 or matrix.shape[1] != heads * width:
        raise ValueError(f"output_weight has shape {tuple(matrix.shape)}; expected {expected}")
    if matrix.device != weights.device:
        raise ValueError(f"output_weight is on {matrix.device}; expected {weights.device}, the device of the weights")
    parts = matrix.to(weights.dtype).view(-1, heads, width).movedim(1, 0)  # [heads, model_dim, value_dim]
    gram = parts.mT @ parts  # ‖v Wᵀ‖² = v (Wᵀ W) vᵀ, without vectors of model_dim
    per_head = value.repeat_interleave(heads // value.shape[1], dim=1)
    squares = ((per_head @ gram) * per_head).sum(dim=-1)
    positive = squares > 0  # the square root has no finite gradient at 0
    return scaled(weights, torch.where(positive, torch.where(positive, squares, 1.0).sqrt(), 0.0))
