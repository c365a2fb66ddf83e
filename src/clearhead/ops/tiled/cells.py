"""Search for single cells of the matrix, tile by tile: the largest of each bin, and all above a threshold."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.ops._precision import without_autocast
from clearhead.ops.tiled.logits import FoldedCall
from clearhead.ops.tiled.pooling import Bins
from clearhead.ops.tiled.sweep import iterate_weights


@without_autocast
def cells_above(
    folded: FoldedCall, lse: Float[Tensor, "batch heads q_len"], threshold: float, limit: int
) -> tuple[Int[Tensor, "4 count"], int]:
    """Return the indices of all weights above a threshold in row-major order, and their number.

    After more than `limit` cells, only their number is counted, and the indices are incomplete.
    """
    _, _, group, q_len, kv_len = folded.shape
    parts: list[Tensor] = []
    count = 0
    for block, tile, weights in iterate_weights(folded, lse):
        inside = (weights > threshold).nonzero()  # [cells, 5]
        count += len(inside)
        if count > limit or not len(inside):
            continue
        starts = [part.start for part in (*block, tile.keys)]
        parts.append(inside + torch.tensor(starts, device=inside.device))
    if not parts:
        return torch.zeros((4, 0), dtype=torch.long, device=lse.device), count
    batch, kv_head, member, row, key = torch.cat(parts).unbind(dim=1)
    head = kv_head * group + member
    order = (((batch * lse.shape[1] + head) * q_len + row) * kv_len + key).argsort()
    return torch.stack([batch, head, row, key])[:, order], count


class LargestCells(NamedTuple):
    """Largest weight of each bin, with its row and key; row and key are 0 if all weights of the bin are 0."""

    weights: Float[Tensor, "batch heads rows cols"]
    rows: Int[Tensor, "batch heads rows cols"]
    keys: Int[Tensor, "batch heads rows cols"]


@without_autocast
def largest_cells(folded: FoldedCall, lse: Float[Tensor, "batch heads q_len"], rows: int, cols: int) -> LargestCells:
    """Return the largest weight of each bin of adaptive pooling."""
    batch, kv_heads, group, q_len, kv_len = folded.shape
    row_bins, col_bins = Bins(q_len, rows, lse), Bins(kv_len, cols, lse)
    largest = lse.new_zeros((batch, kv_heads, group, rows, cols))
    cells = torch.zeros((2, *largest.shape), dtype=torch.long, device=lse.device)
    for block, tile, weights in iterate_weights(folded, lse):
        down, across = row_bins.over(block.rows), col_bins.over(tile.keys)
        row_index, key_index = down.positions(), across.positions()  # [bins, widest]
        picked = weights.index_select(-2, row_index.flatten()).index_select(-1, key_index.flatten())
        binned = picked.unflatten(-2, row_index.shape).unflatten(-1, key_index.shape).movedim(-3, -2).flatten(-2)
        value, position = binned.max(dim=-1)
        bin_rows, bin_keys = (torch.arange(n, device=lse.device) for n in value.shape[-2:])
        row = row_index[bin_rows[:, None], position // key_index.shape[1]] + block.rows.start
        key = key_index[bin_keys, position % key_index.shape[1]] + tile.keys.start
        best = largest[block[:3]][..., down.bins, across.bins]
        better = value > best
        best.copy_(torch.where(better, value, best))
        for axis, index in enumerate((row, key)):
            part = cells[axis][block[:3]][..., down.bins, across.bins]
            part.copy_(torch.where(better, index, part))
    return LargestCells(largest.flatten(1, 2), *cells.flatten(2, 3))
