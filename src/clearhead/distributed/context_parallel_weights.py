"""`ContextParallelWeights`: an attention matrix whose rows are sharded over ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from clearhead._utils.checks import check_int
from clearhead.distributed._collectives import all_gather_tensors, all_reduce_sum
from clearhead.distributed.layout import ZigzagLayout
from clearhead.ops.spans import SpansLike
from clearhead.ops.statistics import AttentionStatistics, Reduce, TopK
from clearhead.weights.matrix import AttentionWeights


class ContextParallelWeights:
    """Attention matrix `[batch, heads, n, n]` of a sharded text, as returned by `context_parallel_attention`.

    The methods are collectives, so all ranks must call them: each rank computes the statistics of its rows, and all
    ranks return the statistics of the whole matrix. `parts` contains this rank's rows as `(slice, AttentionWeights)`.
    """

    def __init__(
        self, layout: ZigzagLayout, parts: Sequence[tuple[slice, AttentionWeights]], group: ProcessGroup | None
    ) -> None:
        self.layout, self.parts, self.group = layout, tuple(parts), group

    @property
    def shape(self) -> torch.Size:
        batch, heads, _, kv_len = self.parts[0][1].shape
        return torch.Size((batch, heads, self.layout.length, kv_len))

    def __repr__(self) -> str:
        batch, heads, q_len, kv_len = self.shape
        queries = ", ".join(f"{chunk.start} to {chunk.stop - 1}" for chunk, _ in self.parts if chunk.stop > chunk.start)
        matrix = f"{batch} × {heads} heads × {q_len} queries × {kv_len} keys"
        return f"ContextParallelWeights({matrix}; local queries {queries or 'none'})"

    def entropy(self) -> Float[Tensor, "batch heads q_len"]:
        """Return the entropy of each row, as `AttentionWeights.entropy` does."""
        return self.observe(entropy=True).entropy

    def received(self) -> Float[Tensor, "batch heads kv_len"]:
        """Return the column sums, as `AttentionWeights.received` does."""
        return self.observe(received=True).received

    def distance(self) -> Float[Tensor, "batch heads q_len"]:
        """Return the mean distance of each row, as `AttentionWeights.distance` does."""
        return self.observe(distance=True).distance

    def peak(self) -> Float[Tensor, "batch heads q_len"]:
        """Return the largest score of each row, as `AttentionWeights.peak` does."""
        return self.observe(peak=True).peak

    def mass(self, spans: SpansLike) -> Float[Tensor, "batch heads q_len spans"]:
        """Return the attention of each row that falls on spans of keys, as `AttentionWeights.mass` does."""
        if spans is None:
            raise TypeError("spans is None; expected spans of keys, such as [(0, 10), (10, 20)]")
        return self.observe(spans=spans).mass

    def topk(self, k: int) -> TopK:
        """Return the `k` largest weights of each row, as `AttentionWeights.topk` does."""
        return self.observe(top=check_int("k", k)).top

    @torch.no_grad()
    def observe(
        self,
        *,
        entropy: bool = False,
        received: bool = False,
        distance: bool = False,
        peak: bool = False,
        spans: SpansLike | None = None,
        top: int | None = None,
    ) -> AttentionStatistics:
        """Compute several statistics in one pass over each rank's rows, as `AttentionWeights.observe` does.

        Args:
            entropy: return the entropy of each row.
            received: return the column sums.
            distance: return the mean distance of each row.
            peak: return the largest score of each row.
            spans: spans of keys, as in `mass`. The result is named `mass`.
            top: number of largest weights of each row to return.
        """
        statistics = [
            weights.observe(entropy=entropy, received=received, distance=distance, peak=peak, spans=spans, top=top)
            for _, weights in self.parts
        ]

        def gather_rows(parts: list[Tensor]) -> Tensor:
            return self.layout.unshard(all_gather_tensors(torch.cat(parts, dim=2), self.group), dim=2)

        def sum_over_rows(parts: list[Tensor]) -> Tensor:
            total = torch.stack([part.double() for part in parts]).sum(dim=0)
            return all_reduce_sum(total, self.group).to(parts[0].dtype)

        return AttentionStatistics(
            entropy=gather_rows([part.entropy for part in statistics]) if entropy else None,
            distance=gather_rows([part.distance for part in statistics]) if distance else None,
            peak=gather_rows([part.peak for part in statistics]) if peak else None,
            mass=None if spans is None else gather_rows([part.mass for part in statistics]),
            received=sum_over_rows([part.received for part in statistics]) if received else None,
            top=TopK(
                gather_rows([part.top.weights for part in statistics]),
                gather_rows([part.top.keys for part in statistics]),
            )
            if top
            else None,
        )

    @torch.no_grad()
    def pool(self, rows: int, cols: int, *, reduce: Reduce = "mean") -> Float[Tensor, "batch heads rows cols"]:
        """Reduce the matrix to `rows` × `cols` bins, as `AttentionWeights.pool` does."""
        rows, cols = check_int("rows", rows), check_int("cols", cols)
        if reduce not in ("mean", "max"):
            raise ValueError(f"reduce is {reduce!r}; expected 'mean' or 'max'")
        batch, heads, q_len, kv_len = self.shape
        first = self.parts[0][1]
        pooled = torch.zeros(batch, heads, rows, cols, dtype=torch.float64, device=first.device)
        for row in range(rows):
            start, end = row * q_len // rows, -(-(row + 1) * q_len // rows)
            for chunk, weights in self.parts:
                low, high = max(start, chunk.start), min(end, chunk.stop)
                if low >= high:
                    continue
                window = ((low - chunk.start, high - chunk.start), (0, kv_len))
                band = weights.pool(1, cols, reduce=reduce, window=window)[:, :, 0].double()
                if reduce == "max":
                    pooled[:, :, row] = torch.maximum(pooled[:, :, row], band)
                else:
                    pooled[:, :, row] += band * ((high - low) / (end - start))
        operation = distributed.ReduceOp.MAX if reduce == "max" else distributed.ReduceOp.SUM
        distributed.all_reduce(pooled, operation, group=self.group)
        return pooled.to(first.lse.dtype)
