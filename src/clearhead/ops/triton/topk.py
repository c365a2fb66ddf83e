"""Largest weights of each query in Triton, in two passes over the scores and O(n) memory.

Keys are divided into as many groups as a tile has columns. The k-th largest group maximum of a row is a bound that at
least k of its scores reach, and few more. The second pass stores the scores that reach it; the largest are selected.
On Hopper GPUs, the kernel of `hopper.topk` takes large matrices instead.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false, reportOperatorIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from clearhead.ops.call import AttentionCall
from clearhead.ops.hopper import topk as hopper_topk
from clearhead.ops.hopper.driver import DriverError
from clearhead.ops.hopper.support import remember_failure
from clearhead.ops.statistics import TopK
from clearhead.ops.triton.config import TileConfig, block_count, constants, matmul_precision
from clearhead.ops.triton.logits import (
    LogitParams,
    deferred_scale,
    dot_transposed,
    finish_logits,
    key_length,
    load_row_values,
    load_rows,
    prepare_lse,
    query_length,
    row_indices,
    row_reader,
)
from clearhead.ops.triton.schedule import loop_over_keys, program_block, query_block
from clearhead.ops.triton.tiles import launch_with_tile

CANDIDATES_PER_ROW = 64  # space for scores that reach the bound
MAX_TOP_KEYS = 32
MERGED_ROWS = 16  # rows per program of `_select_best`


def top_weights(call: AttentionCall, lse: Tensor, count: int) -> TopK | None:
    """Return the largest weights; None if too many scores of a row reach its bound.

    This happens if many scores are equal, or if the largest are in few groups.
    """
    if not hopper_topk.unsupported_reasons(call, count):
        try:
            return hopper_topk.top_weights(call, lse, count)
        except DriverError as error:
            remember_failure(error)
    batch, heads, q_len, _ = call.query.shape
    logit_params, precision = LogitParams.from_call(call), matmul_precision(call.query.dtype)
    bounds = lse.new_empty(lse.shape)
    reached = torch.empty(lse.shape, dtype=torch.int32, device=lse.device)
    logits = lse.new_empty((*lse.shape, CANDIDATES_PER_ROW))
    keys = torch.empty(logits.shape, dtype=torch.int32, device=lse.device)

    def launch(tile: TileConfig) -> None:
        grid = (block_count(q_len, tile.queries) * heads * batch,)
        arguments = (row_reader(call.query, tile.queries), row_reader(call.key, tile.keys), logit_params, bounds)
        options = constants(call, tile)
        _bounds[grid](*arguments, count, **options, PRECISION=precision)
        _candidates[grid](*arguments, reached, logits, keys, **options, OPTIONS=(precision, CANDIDATES_PER_ROW))

    launch_with_tile("top", call, q_len, launch)
    if int(reached.max()) > CANDIDATES_PER_ROW:
        return None
    weights = lse.new_empty((*lse.shape, count))
    chosen = torch.empty(weights.shape, dtype=torch.int64, device=lse.device)
    rows = block_count(q_len, MERGED_ROWS) * heads * batch
    _select_best[(rows,)](
        logit_params,
        prepare_lse(lse),
        reached,
        logits,
        keys,
        weights,
        chosen,
        count,
        ROWS=MERGED_ROWS,
        ROOM=CANDIDATES_PER_ROW,
    )
    return TopK(weights, chosen)


@triton.jit(do_not_specialize=["count"])
def _bounds(
    query,
    key,
    logit_params,
    bounds,
    count,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    RANGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    start, rows, head, batch = query_block(logit_params, BLOCK_Q)
    tile = load_rows(query, batch, head, start, BLOCK_Q, BLOCK_D)
    fixed = (tile, key, logit_params, batch, head, rows)
    maxima = tl.full([BLOCK_Q, BLOCK_K], -float("inf"), dtype=tl.float32)
    kv_len = key_length(logit_params)
    maxima = loop_over_keys(
        _update_maxima, maxima, fixed, logit_params, batch, rows, 0, kv_len, BLOCK_K, RANGES, PRECISION
    )
    bound = tl.max(maxima, 1)
    for _ in range(1, count):
        maxima = tl.where(maxima == bound[:, None], -float("inf"), maxima)
        bound = tl.max(maxima, 1)
    # slightly lower, because the second pass may round differently
    bound = tl.where(bound == -float("inf"), bound, bound - tl.abs(bound) * 1e-5 - 1e-30)
    tl.store(bounds + row_indices(logit_params, batch, head, rows), bound, rows < query_length(logit_params))


@triton.jit
def _logits(fixed, key_start, first, last, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr):
    query, key, logit_params, batch, head, rows = fixed
    keys = key_start + tl.arange(0, BLOCK_K)
    products = dot_transposed(
        query, load_rows(key, batch, head // logit_params.group, key_start, BLOCK_K, query.shape[1]), PRECISION
    )
    return finish_logits(
        products, logit_params, batch, head, rows[:, None], keys[None, :], first[:, None], last[:, None], MASKED
    )


@triton.jit
def _update_maxima(
    maxima, fixed, key_start, first, last, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr
):
    """Update the group maxima of each row; the columns of a tile are the groups."""
    return tl.maximum(maxima, _logits(fixed, key_start, first, last, BLOCK_K, PRECISION, MASKED))


@triton.jit
def _candidates(
    query,
    key,
    logit_params,
    bounds,
    reached,
    logits,
    keys,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    RANGES: tl.constexpr,
    OPTIONS: tl.constexpr,
):
    start, rows, head, batch = query_block(logit_params, BLOCK_Q)
    tile = load_rows(query, batch, head, start, BLOCK_Q, BLOCK_D)
    indices = row_indices(logit_params, batch, head, rows)
    bound = tl.load(bounds + indices, rows < query_length(logit_params), other=float("inf"))
    fixed = ((tile, key, logit_params, batch, head, rows), indices, logits, keys)
    state = (bound, tl.zeros([BLOCK_Q], dtype=tl.int32))
    kv_len = key_length(logit_params)
    state = loop_over_keys(
        _store_candidates, state, fixed, logit_params, batch, rows, 0, kv_len, BLOCK_K, RANGES, OPTIONS
    )
    tl.store(reached + indices, state[1], rows < query_length(logit_params))


@triton.jit
def _store_candidates(
    state, fixed, key_start, first, last, BLOCK_K: tl.constexpr, OPTIONS: tl.constexpr, MASKED: tl.constexpr
):
    """Store the scores of a tile that reach the bound, the largest of each row first, one per row and iteration."""
    bound, count = state
    inner, indices, logits, keys = fixed
    PRECISION: tl.constexpr = OPTIONS[0]
    ROOM: tl.constexpr = OPTIONS[1]
    tile_logits = _logits(inner, key_start, first, last, BLOCK_K, PRECISION, MASKED)
    key_indices = (key_start + tl.arange(0, BLOCK_K))[None, :]
    hit = (tile_logits >= bound[:, None]) & (tile_logits > -float("inf"))
    left = tl.where(hit, tile_logits, -float("inf"))
    for _ in range(tl.max(tl.sum(hit.to(tl.int32), 1))):
        largest = tl.max(left, 1)
        key = tl.min(tl.where(left == largest[:, None], key_indices, 2147483647), 1)
        some = largest > -float("inf")
        stored = some & (count < ROOM)
        tl.store(logits + indices * ROOM + count, largest, stored)
        tl.store(keys + indices * ROOM + count, key, stored)
        left = tl.where(key_indices == key[:, None], -float("inf"), left)
        count += some.to(tl.int32)
    return bound, count


@triton.jit(do_not_specialize=["count"])
def _select_best(
    logit_params, shift, reached, logits, keys, weights, chosen, count, ROWS: tl.constexpr, ROOM: tl.constexpr
):
    """Select the largest of the stored scores; among equal scores, the first keys."""
    block, head, batch = program_block(query_length(logit_params), logit_params.heads, logit_params.batches, ROWS)
    rows = block * ROWS + tl.arange(0, ROWS)
    inside = rows < query_length(logit_params)
    indices = row_indices(logit_params, batch, head, rows)
    slots = tl.arange(0, ROOM)
    filled = slots[None, :] < tl.load(reached + indices, inside, other=0)[:, None]
    offsets = indices[:, None] * ROOM + slots[None, :]
    left = tl.load(logits + offsets, filled, other=-float("inf"))
    key = tl.load(keys + offsets, filled, other=-1)
    row_lse = load_row_values(shift, logit_params, batch, head, rows)
    for index in range(count):
        largest = tl.max(left, 1)
        first = tl.min(tl.where(left == largest[:, None], key, 2147483647), 1)
        some = largest > -float("inf")
        left = tl.where(key == first[:, None], -float("inf"), left)
        weight = tl.where(some, tl.exp2(tl.where(some, largest, 0.0) * deferred_scale(logit_params) - row_lse), 0.0)
        tl.store(weights + indices * count + index, weight, inside)
        tl.store(chosen + indices * count + index, tl.where(some, first, -1).to(tl.int64), inside)
