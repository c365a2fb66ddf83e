"""Mean of the matrix over heads, computed on demand."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import adaptive_max_pool2d, pad

from clearhead._utils.checks import check_int
from clearhead.ops import dispatch
from clearhead.ops.selection import ALL, count, narrow, take
from clearhead.ops.spans import Spans, SpansLike
from clearhead.ops.statistics import AttentionStatistics, PoolSpec, Reduce, StatisticsOptions, StatisticsRequest, TopK
from clearhead.ops.tiled.pooling import bin_ends
from clearhead.ops.triton import backend as triton
from clearhead.weights.cells import MAX_CELLS, refuse_above
from clearhead.weights.indexing import Selection
from clearhead.weights.lazy_matrix import LazyMatrix
from clearhead.weights.lookup import Cells
from clearhead.weights.strips import by_strips, log_of_positive

if TYPE_CHECKING:
    from clearhead.weights.matrix import AttentionWeights


class MeanHeads(LazyMatrix):
    """Lazy mean over groups of consecutive heads, `[batch, groups, q_len, kv_len]`; differentiable.

    Sums over the matrix are means of the heads' sums. Entropy, the largest weights and maxima need whole rows of the
    mean, which are computed for a strip of queries at a time.
    """

    def __init__(self, weights: AttentionWeights, groups: int = 1) -> None:
        groups = check_int("groups", groups)
        if weights.shape[1] % groups:
            raise ValueError(f"groups is {groups}; expected a divisor of the number of heads, {weights.shape[1]}")
        self._weights, self._groups = weights, groups

    @property
    def shape(self) -> torch.Size:
        batch, _, q_len, kv_len = self._weights.shape
        return torch.Size((batch, self._groups, q_len, kv_len))

    @property
    def dtype(self) -> torch.dtype:
        return self._weights.dtype

    @property
    def device(self) -> torch.device:
        return self._weights.device

    @property
    def key_heads(self) -> int:
        return self._groups

    @property
    def requires_grad(self) -> bool:
        """True if weights computed now carry gradients."""
        return self._weights.requires_grad

    def detach(self) -> MeanHeads:
        """Return the matrix without gradients."""
        return type(self)(self._weights.detach(), self._groups)

    def __repr__(self) -> str:
        return f"MeanHeads({self._groups} of {self._weights!r})"

    # -- statistics ----------------------------------------------------------------------------------------------

    def entropy(self) -> Float[Tensor, "batch groups q_len"]:
        """Return the entropy −Σ A ln A of each row of the mean, in nats."""
        call = self._weights._checked().without_dropout()
        if not self.requires_grad and dispatch.uses_triton(call):
            return triton.mean_entropy(call, self._weights.lse, self._groups)
        rows = self._rows()

        def compute(strip: slice) -> Tensor:
            weights = rows(strip)
            return -(weights * log_of_positive(weights)).sum(dim=-1)

        return self._by_strips(compute)

    def received(self) -> Float[Tensor, "batch groups kv_len"]:
        return self._mean(self._weights.received())

    def distance(self) -> Float[Tensor, "batch groups q_len"]:
        """Return the mean distance Σ A · |query position − key position| of each row."""
        return self._mean(self._weights.distance())

    def mass(self, spans: SpansLike) -> Float[Tensor, "batch groups q_len spans"]:
        return self._mean(self._weights.mass(spans))

    def topk(self, k: int) -> TopK:
        count = check_int("k", k, most=None)
        refuse_above(MAX_CELLS, (*self.shape[:3], count))
        rows, kv_len = self._rows(), self.shape[3]
        with torch.no_grad():
            if count == 1 and kv_len:  # the first of equal weights, as torch's argmax
                keys = self._by_strips(lambda strip: rows(strip).argmax(dim=-1, keepdim=True))
            else:
                keys = self._by_strips(lambda strip: rows(strip).topk(min(count, kv_len)).indices)
        values = self._by_strips(lambda strip: rows(strip).gather(-1, keys[:, :, strip]))
        missing = (0, max(0, count - kv_len))  # `keys` must not change: the backward pass computes the strips again
        return TopK(pad(values, missing), pad(torch.where(values > 0, keys, -1), missing, value=-1))

    def pool(self, rows: int, cols: int, *, reduce: Reduce = "mean") -> Float[Tensor, "batch groups rows cols"]:
        """Reduce the matrix to `rows` × `cols` bins of adaptive pooling."""
        spec = PoolSpec.checked(rows, cols, reduce)
        if spec.reduce == "mean" or 0 in self.shape:
            return self._mean(self._weights.pool(spec.rows, spec.cols))
        source, device = self._rows(), torch.device("cpu")
        bands = []
        for first, last in zip(*(ends.tolist() for ends in bin_ends(self.shape[2], spec.rows, device)), strict=True):
            columns = by_strips(
                lambda strip, first=first: adaptive_max_pool2d(
                    source(slice(first + strip.start, first + strip.stop)), (1, spec.cols)
                ),
                (*self._weights.shape[:2], last - first, self.shape[3]),
                with_grad=self.requires_grad,
            )
            bands.append(columns.amax(dim=2, keepdim=True))
        return torch.cat(bands, dim=2)

    def observe(self, **statistics: Unpack[StatisticsOptions]) -> AttentionStatistics:
        """Compute several statistics, as the methods of their names do; `peak` has no meaning for a mean."""
        request = StatisticsRequest.checked(**statistics)
        if request.peak:
            raise ValueError("peak is True; expected False, because a mean over heads has no scores")
        spans: Spans | None = request.spans
        return AttentionStatistics(
            entropy=self.entropy() if request.entropy else None,
            received=self.received() if request.received else None,
            distance=self.distance() if request.distance else None,
            mass=None if spans is None else self._mean(self._weights.observe(spans=spans).mass),  # pyright: ignore
            top=self.topk(request.top) if request.top else None,
            pooled=None if request.pool is None else self.pool(*request.pool[:2], reduce=request.pool.reduce),
        )

    def kl(self, student: AttentionWeights, *, ignore: bool = False) -> Float[Tensor, "batch heads q_len"]:
        """Return KL(self ‖ student) of each row, as `AttentionWeights.kl`; differentiable in both."""
        from clearhead.weights.divergences import kl

        return kl(self, student, ignore)

    # -- internals -----------------------------------------------------------------------------------------------

    def _map_tensors(self, function: Callable[[Tensor], Tensor]) -> MeanHeads:
        return type(self)(self._weights._map_tensors(function), self._groups)

    def _block(self, selection: Selection) -> Float[Tensor, "batch groups rows keys"]:
        batch, groups, rows, keys = selection
        source = self._rows()
        return by_strips(
            lambda strip: take(source(narrow(rows, strip)), batch, groups, ALL, keys),
            (*self._weights.shape[:2], count(rows), self.shape[3]),
            with_grad=self.requires_grad,
        )

    def _cells(self) -> Cells:
        cells, size = self._weights._cells(), self._weights.shape[1] // self._groups

        def compute(index: Int[Tensor, "4 count"]) -> Float[Tensor, " count"]:
            heads = index[1, :, None] * size + torch.arange(size, device=index.device)  # [count, size]
            batch, _, row, key = (part[:, None].expand_as(heads) for part in index)
            return cells(torch.stack([batch, heads, row, key]).flatten(1)).view(-1, size).mean(dim=1)

        return compute

    def _mean(self, per_head: Float[Tensor, "batch heads *rest"]) -> Float[Tensor, "batch groups *rest"]:
        return per_head.unflatten(1, (self._groups, -1)).mean(dim=2)

    def _rows(self):
        rows = self._weights._strips()
        return lambda strip: self._mean(rows(strip))

    def _by_strips(self, compute) -> Tensor:
        return by_strips(compute, tuple(self._weights.shape), with_grad=self.requires_grad)

    def _per_head(self, other: Tensor) -> Tensor:
        heads = other.shape[1]
        return other if heads == 1 else other.repeat_interleave(self._weights.shape[1] // heads, dim=1)

    def _matmul(self, other: Tensor) -> Tensor:
        return self._mean(self._weights._matmul(self._per_head(other)))

    def _transposed_matmul(self, other: Tensor) -> Tensor:
        return self._mean(self._weights._transposed_matmul(self._per_head(other)))

    def _column_maxima(self) -> tuple[Tensor, Tensor]:
        rows = self._rows()
        parts = self._by_strips(lambda strip: rows(strip).amax(dim=2, keepdim=True))
        with torch.no_grad():
            first = self._by_strips(lambda strip: rows(strip).argmax(dim=2, keepdim=True) + strip.start)
        values, best = parts.max(dim=2, keepdim=True)
        return values, first.gather(2, best)
