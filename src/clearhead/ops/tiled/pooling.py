"""Pooling of any rectangle of the matrix into bins, tile by tile."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.ops._precision import without_autocast
from clearhead.ops.statistics import PoolSpec
from clearhead.ops.tiled.logits import BlockLogits, FoldedCall, ScratchMemory, exp_, fold_heads
from clearhead.ops.tiled.schedule import iterate_tiles, max_tile_cells


@without_autocast
def pool(
    folded: FoldedCall, lse: Float[Tensor, "batch heads q_len"], spec: PoolSpec
) -> Float[Tensor, "batch heads rows cols"]:
    """Pool the weights into the bins of adaptive pooling: bin i of n covers ⌊i·L/n⌋ up to ⌈(i+1)·L/n⌉."""
    rows, cols, reduce = spec
    batch, kv_heads, group, q_len, kv_len = folded.shape
    log_weights = folded.minus_lse(fold_heads(lse, kv_heads))
    may_underflow = folded.underflow_bound()
    row_bins, col_bins = _Bins(q_len, rows, lse), _Bins(kv_len, cols, lse)
    pooled = lse.new_zeros((batch, kv_heads, group, rows, cols))
    scratch = ScratchMemory(max_tile_cells(folded.shape, folded.ranges, lse.device), lse)
    for block, tiles in iterate_tiles(folded.shape, folded.ranges, lse.dtype, lse.device):
        logits = BlockLogits(log_weights, block)
        underflows = may_underflow(block)
        down = row_bins.over(block.rows)
        for tile in tiles:
            logs = logits.apply_bias_and_mask_(logits.products(tile, scratch.take(*logits.tile_shape(tile))), tile)
            weights = logits.unflatten_heads(exp_(logs, masked=folded.masked(tile), may_underflow=underflows))
            across = col_bins.over(tile.keys)
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
        steps = torch.arange(widest, device=weights.device)
        index = torch.minimum(self.first[:, None] + steps, self.last[:, None] - 1)
        return weights.index_select(dim, index.flatten()).unflatten(dim, index.shape).amax(dim=dim)


class _Bins:
    def __init__(self, length: int, count: int, like: Tensor) -> None:
        self.first, self.last = bin_ends(length, count, like.device)
        self.like = like

    def over(self, part: slice) -> _Span:
        """Return the bins that overlap some of the positions."""
        start = int((self.last <= part.start).sum())
        stop = int((self.first < part.stop).sum())
        whole_first, whole_last = self.first[start:stop], self.last[start:stop]
        first = whole_first.clamp(min=part.start) - part.start
        last = whole_last.clamp(max=part.stop) - part.start
        position = torch.arange(part.stop - part.start, device=first.device)
        inside = (position >= first[:, None]) & (position < last[:, None])
        return _Span(slice(start, stop), first, last, inside.to(self.like.dtype) / (whole_last - whole_first)[:, None])
