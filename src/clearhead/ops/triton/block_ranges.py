"""Transposed block ranges: the query blocks that may attend to each key block, in O(n) memory."""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from clearhead.ops._mask_cache import cached_for_tensor, current_stream, is_cacheable
from clearhead.ops.call import AttentionCall
from clearhead.ops.triton.config import TileConfig, block_count
from clearhead.ops.triton.logits import LogitParams
from clearhead.ops.triton.schedule import block_bounds, range_ends

BLOCKS_PER_STEP = 1024  # query blocks compared at a time


def transpose_block_ranges(call: AttentionCall, logit_params: LogitParams, tile: TileConfig) -> Tensor | None:
    """Return bounds of the query blocks that may attend to each key block, `[ranges, 4, batch or 1, key blocks]`.

    The bounds are `(start, full_start, full_end, end)`. Only query blocks in `[start, end)` may attend to a key of the
    block. Every row of the query blocks in `[full_start, full_end)` may attend to all of its keys. Without key ranges
    the result is None, because every query may attend to every key.

    All layers of a model, and their backward passes, share the result if they share the mask.
    """
    ranges = logit_params.ranges
    if ranges is None:
        return None
    kv_len = call.key.shape[2]
    if not is_cacheable(call.query):
        return _transpose_ranges(logit_params, kv_len, tile)
    key = (kv_len, tile.queries, tile.keys, current_stream(ranges.device))
    return cached_for_tensor(ranges, key, lambda: _transpose_ranges(logit_params, kv_len, tile))


def _transpose_ranges(logit_params: LogitParams, kv_len: int, tile: TileConfig) -> Tensor:
    ranges = logit_params.ranges
    count, _, batch, q_len = ranges.shape
    blocks, key_blocks = block_count(q_len, tile.queries), block_count(kv_len, tile.keys)
    spans = torch.empty((count, 4, batch, blocks), dtype=torch.int32, device=ranges.device)
    _block_bounds[(blocks, batch, count)](logit_params, spans, blocks, tile.queries)
    seen = torch.empty((count, 4, batch, key_blocks), dtype=torch.int32, device=ranges.device)
    _transpose[(key_blocks, batch, count)](spans, seen, blocks, kv_len, tile.keys, BLOCKS_PER_STEP)
    return seen


@triton.jit(do_not_specialize=["blocks"])
def _block_bounds(logit_params, spans, blocks, BLOCK_Q: tl.constexpr):
    """Store the four bounds of every query block that `block_bounds` returns."""
    block, batch, range_index = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows = block * BLOCK_Q + tl.arange(0, BLOCK_Q)
    first, last = range_ends(logit_params, range_index, batch, rows)
    ends = block_bounds(logit_params, first, last, rows)
    side = tl.num_programs(1) * blocks
    for i in tl.static_range(4):
        tl.store(spans + (range_index * 4 + i) * side + batch * blocks + block, ends[i])


@triton.jit(do_not_specialize=["blocks", "kv_len"])
def _transpose(spans, seen, blocks, kv_len, BLOCK_K: tl.constexpr, STEP: tl.constexpr):
    block, batch, range_index = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first, last = block * BLOCK_K, tl.minimum(block * BLOCK_K + BLOCK_K, kv_len)
    side = tl.num_programs(1) * blocks
    pointers = spans + range_index * 4 * side + batch * blocks
    start, run, end = blocks, blocks, 0
    for step in range(0, blocks, STEP):
        block_indices = step + tl.arange(0, STEP)
        sees, sees_all = _block_visibility(pointers, block_indices, side, blocks, first, last)
        start = tl.minimum(start, tl.min(tl.where(sees, block_indices, blocks)))
        end = tl.maximum(end, tl.max(tl.where(sees, block_indices + 1, 0)))
        run = tl.minimum(run, tl.min(tl.where(sees_all, block_indices, blocks)))
    run, run_end = tl.minimum(run, end), end
    for step in range(run, end, STEP):
        block_indices = step + tl.arange(0, STEP)
        _, sees_all = _block_visibility(pointers, block_indices, side, blocks, first, last)
        run_end = tl.minimum(run_end, tl.min(tl.where(sees_all, blocks, block_indices)))
    target = seen + range_index * 4 * tl.num_programs(1) * tl.num_programs(0) + batch * tl.num_programs(0) + block
    side = tl.num_programs(1) * tl.num_programs(0)
    tl.store(target, start)
    tl.store(target + side, run)
    tl.store(target + 2 * side, run_end)
    tl.store(target + 3 * side, end)


@triton.jit
def _block_visibility(pointers, block_indices, side, blocks, first, last):
    """Return whether query blocks may attend to some of the keys in `[first, last)`, and whether to all of them."""
    inside = block_indices < blocks
    low, high = (
        tl.load(pointers + block_indices, inside, other=0),
        tl.load(pointers + 3 * side + block_indices, inside, other=0),
    )
    full, partial = (
        tl.load(pointers + side + block_indices, inside, other=0),
        tl.load(pointers + 2 * side + block_indices, inside, other=0),
    )
    return inside & (low < last) & (first < high), inside & (full <= first) & (last <= partial)
