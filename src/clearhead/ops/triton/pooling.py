"""Pooling of any rectangle of the matrix into bins, in Triton.

A tile is divided into bins. The rows or keys of a bin occupy consecutive slots of the tile, a power of 2 in number, or
several tiles if the bin is larger. So the sum or maximum of a bin is a reduction along an axis of the tile. Cells that
two bins share are computed twice. Each bin is written by one program, so results are bitwise reproducible.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from clearhead.ops.call import AttentionCall
from clearhead.ops.statistics import PoolSpec
from clearhead.ops.tiled.pooling import bin_ends
from clearhead.ops.triton.config import TileConfig, block_count, constants, matmul_precision, next_power_of_2
from clearhead.ops.triton.logits import (
    LogitParams,
    StridedTensor,
    decoded,
    gather_rows,
    key_length,
    load_row_values,
    prepare_lse,
    query_length,
    unspecialized,
)
from clearhead.ops.triton.schedule import block_bounds, program_block, range_ends
from clearhead.ops.triton.statistics import tile_weights
from clearhead.ops.triton.tiles import launch_with_tile


class BinParams(NamedTuple):
    """Bins of adaptive pooling over some rows or keys."""

    ends: Any  # [2, count]: start and end of each bin
    start: Any  # unspecialized, like `length` and `count`
    length: Any
    count: Any
    steps: Any  # number of tiles that the largest bin fills

    @classmethod
    def over(cls, part: slice, count: int, block: int, device: torch.device) -> tuple[BinParams, int]:
        """Return the bins, and the number of slots of each bin in a tile of `block`."""
        length = part.stop - part.start
        ends = part.start + torch.stack(bin_ends(length, count, device))
        largest = length // count if length % count == 0 else length // count + 2
        slots = min(next_power_of_2(largest), block)
        start, length, count = map(unspecialized, (part.start, length, count))
        return cls(ends.int(), start, length, count, block_count(largest, slots)), slots


def pool(call: AttentionCall, lse: Tensor, rows: slice, keys: slice, spec: PoolSpec) -> Tensor:
    """Return the weights of some rows and keys, pooled into bins."""
    down, across, reduce = spec
    batch, heads, q_len, _ = call.query.shape
    logit_params, shift = LogitParams.from_call(call), prepare_lse(lse)

    def launch(tile: TileConfig) -> Tensor:
        row_bins, high = BinParams.over(rows, down, tile.queries, lse.device)
        key_bins, wide = BinParams.over(keys, across, tile.keys, lse.device)
        cells = lse.new_zeros((batch, heads, down, across))
        _pool[(block_count(down, tile.queries // high) * heads * batch,)](
            StridedTensor.from_tensor(call.query),
            StridedTensor.from_tensor(call.key),
            logit_params,
            shift,
            cells,
            row_bins,
            key_bins,
            HIGH=high,
            WIDE=wide,
            MEAN=reduce == "mean",
            PRECISION=matmul_precision(call.query.dtype),
            **constants(call, tile),
        )
        return cells

    return launch_with_tile("pool", call, q_len, launch)


@triton.jit
def _bin_ends(bins, index):
    """Return the start and end of a bin; a bin beyond the last is empty."""
    count = decoded(bins.count)
    inside = index < count
    return tl.load(bins.ends + index, inside, other=0), tl.load(bins.ends + count + index, inside, other=0)


@triton.jit
def _bin_index(bins, position):
    """Return the bin that contains a row or key, or an adjacent one; positions outside are clamped."""
    length = decoded(bins.length)
    offset = tl.minimum(tl.maximum(position - decoded(bins.start), 0), length).to(tl.int64)
    return (offset * decoded(bins.count) // length).to(tl.int32)


@triton.jit
def _bin_sizes(bins, index):
    """Return the number of rows or keys in a bin; 1 for a bin beyond the last."""
    first, last = _bin_ends(bins, index)
    return tl.maximum(last - first, 1).to(tl.float32)


@triton.jit
def _members(bins, first_bin, step, beyond, BLOCK: tl.constexpr, SLOTS: tl.constexpr):
    """Return the row or key in each slot of a tile, in step `step` of its bins; `beyond` for an empty slot."""
    slots = tl.arange(0, BLOCK)
    first, last = _bin_ends(bins, first_bin + slots // SLOTS)
    member = first + step * SLOTS + slots % SLOTS
    return tl.where(member < last, member, beyond)


@triton.jit
def _pool(
    query,
    key,
    logit_params,
    shift,
    cells,
    row_bins,
    key_bins,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    MEAN: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    RANGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    DOWN: tl.constexpr = BLOCK_Q // HIGH
    ACROSS: tl.constexpr = BLOCK_K // WIDE
    row_count, key_count = decoded(row_bins.count), decoded(key_bins.count)
    block, head, batch = program_block(row_count, logit_params.heads, logit_params.batches, DOWN)
    down = block * DOWN + tl.arange(0, DOWN)
    tall = _bin_sizes(row_bins, down)
    row_offsets = ((batch * logit_params.heads + head) * row_count + down) * key_count
    for row_step in range(row_bins.steps):
        rows = _members(row_bins, block * DOWN, row_step, query_length(logit_params), BLOCK_Q, HIGH)
        tile = gather_rows(query, batch, head, rows, BLOCK_D)
        row_lse = load_row_values(shift, logit_params, batch, head, rows)
        for range_index in tl.static_range(RANGES if RANGES > 0 else 1):
            first, last = range_ends(logit_params, range_index, batch, rows)
            ends = block_bounds(logit_params, first, last, rows)
            # groups of bins, each as many as fit into a tile, that some row may attend to
            low = tl.maximum(_bin_index(key_bins, ends[0]) - 1, 0) // ACROSS
            high = tl.cdiv(tl.minimum(_bin_index(key_bins, ends[3]) + 2, key_count), ACROSS)
            for turn in range(low * key_bins.steps, high * key_bins.steps):
                group, key_step = turn // key_bins.steps, turn % key_bins.steps
                keys = _members(key_bins, group * ACROSS, key_step, key_length(logit_params), BLOCK_K, WIDE)
                keys_tile = gather_rows(key, batch, head // logit_params.group, keys, BLOCK_D)
                weights = tile_weights(
                    tile, keys_tile, row_lse, logit_params, batch, head, rows, keys, first, last, PRECISION, True
                )[0]
                across = group * ACROSS + tl.arange(0, ACROSS)
                pointers = cells + row_offsets[:, None] + across[None, :]
                inside = (down < row_count)[:, None] & (across < key_count)[None, :]
                # no other program writes to these bins; the atomics order the additions of this one
                # reduce keys first, then rows: Triton 3.6 miscomputes bins of 4 if it reduces both at once
                if MEAN:
                    lines = tl.reshape(tl.sum(weights.reshape(BLOCK_Q, ACROSS, WIDE), 2), [DOWN, HIGH, ACROSS])
                    share = tl.sum(lines, 1) / (tall[:, None] * _bin_sizes(key_bins, across)[None, :])
                    tl.atomic_add(pointers, share, inside, sem="relaxed")
                else:
                    lines = tl.reshape(tl.max(weights.reshape(BLOCK_Q, ACROSS, WIDE), 2), [DOWN, HIGH, ACROSS])
                    tl.atomic_max(pointers, tl.max(lines, 1), inside, sem="relaxed")
