"""Pooling of any rectangle of the matrix into bins, tile by tile."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.ops._precision import without_autocast
from clearhead.ops.statistics import PoolSpec
from clearhead.ops.tiled.logits import FoldedCall
from clearhead.ops.tiled.sweep import iterate_weights


@without_autocast
def pool(
    folded: FoldedCall, lse: Float[Tensor, "batch heads q_len"], spec: PoolSpec
) -> Float[Tensor, "batch heads rows cols"]:
    """Pool the weights into the bins of adaptive pooling: bin i of n covers ⌊i·L/n⌋ up to ⌈(i+1)·L/n⌉."""
    rows, cols, reduce = spec
    batch, kv_heads, group, q_len, kv_len = folded.shape
    row_bins, col_bins = Bins(q_len, rows, lse), Bins(kv_len, cols, lse)
    pooled = lse.new_zeros((batch, kv_heads, group, rows, cols))
    for block, tile, weights in iterate_weights(folded, lse):
        down, across = row_bins.over(block.rows), col_bins.over(tile.keys)
        part = pooled[block[:3]][..., down.bins, across.bins]
        if reduce == "mean":
            part += down.mean @ weights @ across.mean.mT
        else:
            peaks = down.peaks(weights, dim=-2)
            torch.maximum(part, across.peaks(peaks, dim=-1), out=part)
    return pooled.flatten(1, 2)


def bin_ends(length: int, count: int, device: torch.device) -> tuple[Int[Tensor, " bins"], Int[Tensor, " bins"]]:
    """Return the starts and ends of `count` bins over `length` positions."""
    index = torch.arange(count, device=device)
    return index * length // count, -(-(index + 1) * length // count)


def mean_matrix(length: int, part: slice, count: int, like: Float[Tensor, "*any"]) -> Float[Tensor, "bins positions"]:
    """Return the matrix that averages the positions of each bin over a part of a length."""
    matrix = like.new_zeros((count, length))
    size = part.stop - part.start
    matrix[:, part] = Bins(size, count, like).over(slice(0, size)).mean
    return matrix


class _Span(NamedTuple):
    """Bins that overlap a span of positions, and the positions of the span in each bin."""

    bins: slice
    first: Int[Tensor, " bins"]  # relative to the span's first position
    last: Int[Tensor, " bins"]
    mean: Float[Tensor, "bins positions"]  # 1 / width of the whole bin for its positions, else 0

    def peaks(self, weights: Tensor, dim: int) -> Tensor:
        """Return the largest weight of each bin. Narrow bins repeat their last position, which keeps the maximum."""
        widest = int((self.last - self.first).max())
        if len(self.first) * widest == weights.shape[dim]:  # bins of equal width without overlap need no gather
            return weights.unflatten(dim, (-1, widest)).amax(dim=dim)
        index = self.positions()
        return weights.index_select(dim, index.flatten()).unflatten(dim, index.shape).amax(dim=dim)

    def positions(self) -> Int[Tensor, "bins widest"]:
        """Return the positions of each bin; narrow bins repeat their last one."""
        steps = torch.arange(int((self.last - self.first).max()), device=self.first.device)
        return torch.minimum(self.first[:, None] + steps, self.last[:, None] - 1)


class Bins:
    """Bins of adaptive pooling over a length."""

    def __init__(self, length: int, count: int, like: Tensor) -> None:
        self.first, self.last = bin_ends(length, count, like.device)
        self.like = like
        self.latest: tuple[slice, _Span] | None = None

    def over(self, part: slice) -> _Span:
        """Return the bins that overlap some of the positions."""
        if self.latest is None or self.latest[0] != part:  # consecutive tiles have the same rows
            self.latest = part, self._overlapping(part)
        return self.latest[1]

    def _overlapping(self, part: slice) -> _Span:
        start = int((self.last <= part.start).sum())
        stop = int((self.first < part.stop).sum())
        whole_first, whole_last = self.first[start:stop], self.last[start:stop]
        first = whole_first.clamp(min=part.start) - part.start
        last = whole_last.clamp(max=part.stop) - part.start
        position = torch.arange(part.stop - part.start, device=first.device)
        inside = (position >= first[:, None]) & (position < last[:, None])
        return _Span(slice(start, stop), first, last, inside.to(self.like.dtype) / (whole_last - whole_first)[:, None])
