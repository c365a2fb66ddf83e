"""The observing sweep in Triton: statistics of rows and columns from (query, key, log-sum-exp).

A program that owns a block of keys adds weights cell by cell in registers and sums them once at its end, which is what
column sums cost least by; what it finds of rows, and of a map of the whole, it adds to memory as it goes. Where the
same bits are wanted every time, rows are summed by programs that own them, in a pass of their own.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from clearhead.ops.call import AttentionCall
from clearhead.ops.statistics import AttentionStatistics, PoolSpec, StatisticsRequest
from clearhead.ops.triton.block_ranges import transpose_block_ranges
from clearhead.ops.triton.config import (
    Kernel,
    TileConfig,
    block_count,
    constants,
    matmul_precision,
    next_power_of_2,
    tile_for,
)
from clearhead.ops.triton.logits import (
    LN_2,
    LogitParams,
    distance,
    origin,
    prepared_length,
    product,
    rows_at,
    rows_of,
    scored,
    shift_at,
    shifts,
    unit,
)
from clearhead.ops.triton.schedule import over_keys, over_queries, own_rows, program_place, range_ends

BAND = tl.constexpr(16)  # rows of a tile that one warp holds: sums over more would go through shared memory


def compute_statistics(
    call: AttentionCall, lse: Tensor, request: StatisticsRequest, tile: TileConfig | None = None
) -> AttentionStatistics:
    """Compute every statistic of a request but the largest weights.

    Pooling is possible only together with column sums, and if `can_fuse_pooling`.
    """
    entropy, received, distance, picture = request.entropy, request.received, request.distance, request.pool
    batch, heads, q_len, _ = call.query.shape
    kv_len = call.key.shape[2]
    asked = entropy + distance
    # sums of rows, side by side
    found = lse.new_zeros((batch, heads, prepared_length(q_len), asked)).unbind(dim=-1)
    entropies, distances = found[0] if entropy else None, found[-1] if distance else None
    columns = lse.new_zeros((batch, heads, kv_len)) if received else None
    cells = None if picture is None else lse.new_zeros((batch, heads, picture.rows, picture.cols))
    if 0 not in (batch, heads, q_len, kv_len):
        _sweep(call, lse, entropies, columns, distances, cells, picture, tile)
    if cells is not None and picture is not None and picture.reduce == "mean":
        cells /= q_len // picture.rows * (kv_len // picture.cols)
    rows = (None if sums is None else sums[..., :q_len].contiguous() for sums in (entropies, distances))
    return AttentionStatistics(entropy=next(rows), received=columns, distance=next(rows), pooled=cells)


def _sweep(
    call: AttentionCall,
    lse: Tensor,
    entropies: Tensor | None,
    columns: Tensor | None,
    distances: Tensor | None,
    cells: Tensor | None,
    picture: PoolSpec | None,
    tile: TileConfig | None,
) -> None:
    """Add to what is there."""
    batch, heads, q_len, key_dim = call.query.shape
    kv_len = call.key.shape[2]
    scores = LogitParams.from_call(call)
    shift = shifts(scores, lse)
    rows = (entropies, distances)
    apart = any(sums is not None for sums in rows) and (columns is None or torch.are_deterministic_algorithms_enabled())

    def chosen(kernel: Kernel) -> TileConfig:
        return tile or tile_for(kernel, call.query.dtype, key_dim, q_len)

    def arguments(tile: TileConfig) -> tuple:
        return rows_of(call.query, tile.queries), rows_of(call.key, tile.keys), scores, shift

    multiplied = matmul_precision(call.query.dtype)
    if apart:
        own = chosen("observe_rows")
        grid = (block_count(q_len, own.queries) * heads * batch,)
        _observe_rows[grid](*arguments(own), *rows, PRECISION=multiplied, **constants(call, own))
    if columns is not None:
        own = chosen("observe_columns")
        grid = (block_count(kv_len, own.keys) * heads * batch,)
        rows = (None, None) if apart else rows
        options = (multiplied,)
        if picture is not None:
            options = (multiplied, q_len // picture.rows, kv_len // picture.cols, picture.reduce == "mean")
        seen = transpose_block_ranges(scores, own)
        _observe_columns[grid](*arguments(own), columns, *rows, cells, seen, OPTIONS=options, **constants(call, own))


def can_fuse_pooling(call: AttentionCall, picture: PoolSpec) -> bool:
    """Whether a map can be had with the column sums: bins that tiles are made of, or that are made of tiles."""

    def fit(length: int, count: int) -> bool:
        size, rest = divmod(length, count)
        return rest == 0 and size >= BAND.value and size == next_power_of_2(size)

    return fit(call.query.shape[2], picture.rows) and fit(call.key.shape[2], picture.cols)


@triton.jit
def weights_of(
    query, key, shift, scores, batch, head, rows, keys, first, last, PRECISION: tl.constexpr, MASKED: tl.constexpr
):
    """Weights of a tile `[BLOCK_Q, BLOCK_K]`, and their logarithms in base 2."""
    products = product(query, key, PRECISION)
    logits = scored(products, scores, batch, head, rows[:, None], keys[None, :], first[:, None], last[:, None], MASKED)
    logarithms = logits * unit(scores) - shift[:, None]
    weights = tl.exp2(logarithms)
    if MASKED or scores.bias is not None:
        # 0 · −∞ would be nan
        logarithms = tl.where(weights > 0, logarithms, 0.0)
    return weights, logarithms


@triton.jit
def _of_rows(weights, logarithms, entropies, distances, origin, rows, keys):
    """−Σ A ln A and Σ A · distance over the keys of a tile, whichever are asked for: `[BLOCK_Q]` or `[BLOCK_Q, 2]`."""
    if distances is None:
        return tl.sum(weights * logarithms, 1) * -LN_2
    else:
        reach = tl.sum(weights * distance(origin, rows[:, None], keys[None, :]), 1)
        if entropies is None:
            return reach
        else:
            return tl.join(tl.sum(weights * logarithms, 1) * -LN_2, reach)


@triton.jit
def _places_of_rows(entropies, distances, scores, batch, head, rows):
    """Where the sums of rows lie in memory, side by side if there are two; there is room for rows beyond the last."""
    place = (batch * scores.heads + head) * scores.length + rows
    if distances is None:
        return entropies + place
    elif entropies is None:
        return distances + place
    else:
        return entropies + place[:, None] * 2 + tl.arange(0, 2)[None, :]


@triton.jit
def _observe_rows(
    query,
    key,
    scores,
    shift,
    entropies,
    distances,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    RANGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    start, rows, head, batch = own_rows(scores, BLOCK_Q)
    tile = rows_at(query, batch, head, start, BLOCK_Q, BLOCK_D)
    own = shift_at(shift, scores, batch, head, rows)
    fixed = (tile, own, key, scores, entropies, distances, origin(scores, batch), batch, head, rows)
    if entropies is not None and distances is not None:
        state = tl.zeros([BLOCK_Q, 2], dtype=tl.float32)
    else:
        state = tl.zeros([BLOCK_Q], dtype=tl.float32)
    state = over_keys(_look_at_keys, state, fixed, scores, batch, rows, 0, scores.kv_len, BLOCK_K, RANGES, PRECISION)
    tl.store(_places_of_rows(entropies, distances, scores, batch, head, rows), state)


@triton.jit
def _look_at_keys(
    state, fixed, place, first, last, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr
):
    """Add the sums of rows over the keys from `place` on."""
    query, shift, key, scores, entropies, distances, origin, batch, head, rows = fixed
    keys = place + tl.arange(0, BLOCK_K)
    tile = rows_at(key, batch, head // scores.group, place, BLOCK_K, query.shape[1])
    weights, logarithms = weights_of(
        query, tile, shift, scores, batch, head, rows, keys, first, last, PRECISION, MASKED
    )
    return state + _of_rows(weights, logarithms, entropies, distances, origin, rows, keys)


@triton.jit
def _observe_columns(
    query,
    key,
    scores,
    shift,
    columns,
    entropies,
    distances,
    cells,
    seen,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    RANGES: tl.constexpr,
    OPTIONS: tl.constexpr,
    num_stages: tl.constexpr,
):
    block, head, batch = program_place(scores.kv_len, scores.heads, scores.batches, BLOCK_K)
    keys = block * BLOCK_K + tl.arange(0, BLOCK_K)
    tile = rows_at(key, batch, head // scores.group, block * BLOCK_K, BLOCK_K, BLOCK_D)
    fixed = (tile, query, scores, shift, entropies, distances, cells, origin(scores, batch), batch, head, keys)
    summed = tl.zeros([BLOCK_Q, BLOCK_K], dtype=tl.float32)
    summed = over_queries(
        _look_at_queries, summed, fixed, scores, seen, batch, block, BLOCK_Q, BLOCK_K, RANGES, OPTIONS, num_stages
    )
    place = columns + (batch * scores.heads + head) * scores.kv_len + keys
    tl.store(place, tl.sum(summed, 0), keys < scores.kv_len)


@triton.jit
def _look_at_queries(summed, fixed, number, start, BLOCK_Q: tl.constexpr, OPTIONS: tl.constexpr, MASKED: tl.constexpr):
    """Add the weights of queries from `start` on to a block of keys; to rows and to the map in memory."""
    key, query, scores, shift, entropies, distances, cells, origin, batch, head, keys = fixed
    PRECISION: tl.constexpr = OPTIONS[0]
    rows = start + tl.arange(0, BLOCK_Q)
    tile = rows_at(query, batch, head, start, BLOCK_Q, key.shape[1])
    own = shift_at(shift, scores, batch, head, rows)
    first, last = range_ends(scores, number, batch, rows)
    weights, logarithms = weights_of(tile, key, own, scores, batch, head, rows, keys, first, last, PRECISION, MASKED)
    if entropies is not None or distances is not None:
        places = _places_of_rows(entropies, distances, scores, batch, head, rows)
        sums = _of_rows(weights, logarithms, entropies, distances, origin, rows, keys)
        tl.atomic_add(places, sums, sem="relaxed")
    if cells is not None:
        _add_to_map(cells, weights, scores, batch, head, start, tl.min(keys), OPTIONS)
    return summed + weights


@triton.jit
def _add_to_map(cells, weights, scores, batch, head, row, key, OPTIONS: tl.constexpr):
    """A tile's sums or maxima over the part of each bin that lies in it, one warp's rows at a time."""
    BIN_Q: tl.constexpr = OPTIONS[1]
    BIN_K: tl.constexpr = OPTIONS[2]
    MEAN: tl.constexpr = OPTIONS[3]
    HIGH: tl.constexpr = min(BIN_Q, BAND)
    WIDE: tl.constexpr = min(BIN_K, weights.shape[1])
    DOWN: tl.constexpr = weights.shape[0] // HIGH
    ACROSS: tl.constexpr = weights.shape[1] // WIDE
    parts = weights.reshape(DOWN, HIGH, ACROSS, WIDE).permute(0, 2, 1, 3).reshape(DOWN, ACROSS, HIGH * WIDE)
    rows = (row + HIGH * tl.arange(0, DOWN)) // BIN_Q
    columns = (key + WIDE * tl.arange(0, ACROSS)) // BIN_K
    down, across = scores.q_len // BIN_Q, scores.kv_len // BIN_K
    place = ((batch * scores.heads + head) * down + rows[:, None]) * across + columns[None, :]
    inside = (rows < down)[:, None] & (columns < across)[None, :]
    if MEAN:
        tl.atomic_add(cells + place, tl.sum(parts, 2), inside, sem="relaxed")
    else:
        tl.atomic_max(cells + place, tl.max(parts, 2), inside, sem="relaxed")
