"""Statistics of the lazy matrix as methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self, Unpack

from jaxtyping import Float
from torch import Tensor

from clearhead._utils.checks import check_int
from clearhead.ops.call import AttentionCall
from clearhead.ops.spans import Spans, SpansLike
from clearhead.ops.statistics import (
    AttentionStatistics,
    PoolSpec,
    Reduce,
    StatisticsOptions,
    StatisticsRequest,
    TopK,
)
from clearhead.weights.gather import WeightCells
from clearhead.weights.lazy_matrix import LazyMatrix
from clearhead.weights.lookup import Cells
from clearhead.weights.statistics import compute_statistics, pool
from clearhead.weights.strips import WeightRows
from clearhead.weights.threshold import MAX_CELLS_ABOVE, CellsAbove, cells_above


class ObservableMatrix(LazyMatrix):
    """Lazy matrix of a call, with statistics. A subclass defines the call and how to take some queries."""

    _lse: Float[Tensor, "batch heads q_len"]

    def _checked(self) -> AttentionCall:
        """Return the call, after checking that none of its tensors was changed in place."""
        raise NotImplementedError

    def part(self, *, queries: slice | None = None) -> Self:
        """Return a lazy matrix of some queries, without computing weights."""
        raise NotImplementedError

    def _cells(self) -> Cells:
        return WeightCells(self._checked(), self._lse).weights

    def _strips(self) -> Callable[[slice], Float[Tensor, "batch heads rows kv_len"]]:
        """Return a function that computes the weights of some queries; differentiable."""
        return WeightRows(self._checked(), self._lse).weights

    @property
    def unscaled(self) -> Self:
        """The matrix before `scaled`, whose rows are those of a softmax; the matrix itself if it is not scaled."""
        return self

    def entropy(self) -> Float[Tensor, "batch heads q_len"]:
        """Return the entropy −Σ A ln A of each row, in nats; not renormalized by a sink's share, 0 without a key."""
        return compute_statistics(self._checked(), self._lse, StatisticsRequest(entropy=True)).entropy

    def received(self) -> Float[Tensor, "batch heads kv_len"]:
        """Return the attention that each key receives: the column sums."""
        return compute_statistics(self._checked(), self._lse, StatisticsRequest(received=True)).received

    def distance(self) -> Float[Tensor, "batch heads q_len"]:
        """Return the mean distance Σ A · |query position − key position| of each row."""
        return compute_statistics(self._checked(), self._lse, StatisticsRequest(distance=True)).distance

    def peak(self) -> Float[Tensor, "batch heads q_len"]:
        """Return the largest score of each row, before the softmax; −inf without a key, NaN in a row with NaN."""
        return compute_statistics(self._checked(), self._lse, StatisticsRequest(peak=True)).peak

    def mass(self, spans: SpansLike) -> Float[Tensor, "batch heads q_len spans"]:
        """Return the attention of each row that falls on spans of keys.

        Args:
            spans: `(start, end)` pairs, which may overlap; a dict of such pairs by name; or a tensor of segment ids
                `[kv_len]` or `[batch, kv_len]`, −1 for keys in no span. Results are in the order given.
        """
        return compute_statistics(self._checked(), self._lse, StatisticsRequest(spans=Spans.checked(spans))).mass

    def above(self, threshold: float, *, limit: int = MAX_CELLS_ABOVE) -> CellsAbove:
        """Return every weight strictly above a threshold, in row-major order.

        Args:
            threshold: a number of at least 0.
            limit: raise an error, with the count, if there are more.

        Returns:
            `(indices, values)`: the indices `[4, count]` on the four axes, and the weights, which are differentiable.
        """
        return cells_above(self._checked(), self._lse, threshold, check_int("limit", limit, 0, None))

    def topk(self, k: int) -> TopK:
        """Return the `k` largest weights of each query and their keys, largest first; key −1 if a row has fewer."""
        return compute_statistics(self._checked(), self._lse, StatisticsRequest(top=check_int("k", k, most=None))).top

    def observe(self, *, queries: slice | None = None, **statistics: Unpack[StatisticsOptions]) -> AttentionStatistics:
        """Compute several statistics, most of them in one pass over the matrix.

        Args:
            queries: only these queries, such as `slice(-32, None)` for the last 32. Default: all.
            **statistics: statistics to compute, by name:

                - `entropy`, `received`, `distance`, `peak`: True for the result of the method of that name.
                - `spans`: spans of keys, as in `mass`. The result is named `mass`.
                - `top`: the number `k` of the largest weights of each query, as in `topk`.
                - `pool`: `(rows, cols)` for the matrix in bins, as in `pool`. The result is named `pooled`.
                - `reduce`: "mean" or "max" of each bin.

        Returns:
            The results as attributes. Reading a result that was not requested raises an `AttributeError`.
        """
        request = StatisticsRequest.checked(**statistics)
        chosen = self if queries is None else self.part(queries=queries)
        return compute_statistics(chosen._checked(), chosen._lse, request)

    def pool(
        self,
        rows: int,
        cols: int,
        *,
        reduce: Reduce = "mean",
        window: tuple[tuple[int, int], tuple[int, int]] | None = None,
    ) -> Float[Tensor, "batch heads rows cols"]:
        """Reduce the matrix, or a rectangle of it, to `rows` × `cols` bins.

        Bins are those of adaptive pooling, so `rows` and `cols` need not divide the size of the matrix. "max" keeps
        thin diagonals visible, which a mean blurs. `window` is a rectangle `((row, row_end), (key, key_end))`.
        """
        return pool(self._checked(), self._lse, PoolSpec.checked(rows, cols, reduce), window)
