"""Statistics of rows and columns in Triton, from (query, key, log-sum-exp).

For column sums, each program owns a block of keys. It adds weights cell by cell in registers and reduces them once at
the end, which is the fastest way. Row sums and pooled bins are added to memory atomically along the way. If
deterministic algorithms are enabled, a separate pass computes row sums in programs that own the rows. On Hopper GPUs,
the kernel of `hopper.sweep` takes calls with column sums of large matrices instead.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from clearhead.ops.call import AttentionCall
from clearhead.ops.hopper.driver import DriverError
from clearhead.ops.hopper.support import remember_failure
from clearhead.ops.hopper.sweep import sweep, unsupported_reasons
from clearhead.ops.statistics import AttentionStatistics, PoolSpec, StatisticsRequest
from clearhead.ops.triton.block_ranges import transpose_block_ranges
from clearhead.ops.triton.config import TileConfig, block_count, constants, matmul_precision, next_power_of_2
from clearhead.ops.triton.launch import launch, layout_of_call
from clearhead.ops.triton.logits import (
    LN_2,
    LogitParams,
    deferred_scale,
    distance,
    dot_transposed,
    finish_logits,
    key_length,
    load_row_values,
    load_rows,
    prepare_lse,
    prepared_rows,
    query_length,
    query_offset,
    row_reader,
)
from clearhead.ops.triton.schedule import loop_over_keys, loop_over_queries, program_block, query_block, range_ends

WARP_ROWS = tl.constexpr(16)  # rows of a tile that one warp holds: sums over more would go through shared memory


def compute_statistics(
    call: AttentionCall, lse: Tensor, request: StatisticsRequest, tile: TileConfig | None = None
) -> AttentionStatistics:
    """Compute every statistic of a request except the largest weights.

    Pooling requires column sums in the same request, and `can_fuse_pooling`.
    """
    entropy, received, distance, spec = request.entropy, request.received, request.distance, request.pool
    batch, heads, q_len, kv_len = call.shape
    if received and tile is None and 0 not in call.shape and _can_sweep(call):
        try:
            return sweep(call, lse, request)
        except DriverError as error:
            remember_failure(error)
    count = entropy + distance
    row_sums = lse.new_zeros((batch, heads, prepared_rows(q_len), count)).unbind(dim=-1)
    entropies, distances = row_sums[0] if entropy else None, row_sums[-1] if distance else None
    columns = lse.new_zeros((batch, heads, kv_len)) if received else None
    cells = None if spec is None else lse.new_zeros((batch, heads, spec.rows, spec.cols))
    if 0 not in call.shape:
        _launch(call, lse, entropies, columns, distances, cells, spec, tile)
    if cells is not None and spec is not None and spec.reduce == "mean":
        cells /= q_len // spec.rows * (kv_len // spec.cols)
    rows = (None if sums is None else sums[..., :q_len].contiguous() for sums in (entropies, distances))
    return AttentionStatistics(entropy=next(rows), received=columns, distance=next(rows), pooled=cells)


def _can_sweep(call: AttentionCall) -> bool:
    """Return whether the kernel for Hopper GPUs takes a call. It adds in any order, so it is not deterministic."""
    return not (torch.are_deterministic_algorithms_enabled() or unsupported_reasons(call))


def _launch(
    call: AttentionCall,
    lse: Tensor,
    entropies: Tensor | None,
    columns: Tensor | None,
    distances: Tensor | None,
    cells: Tensor | None,
    spec: PoolSpec | None,
    tile: TileConfig | None,
) -> None:
    """Launch the kernels, which add to the given tensors."""
    batch, heads, q_len, kv_len = call.shape
    logit_params, shift = LogitParams.from_call(call), prepare_lse(lse)
    precision = matmul_precision(call.query.dtype)
    row_sums = (entropies, distances)
    in_one_pass = columns is not None and not torch.are_deterministic_algorithms_enabled()

    layout = (*layout_of_call(call), entropies is None, distances is None, in_one_pass, spec)
    inputs = logit_params, shift

    def readers(tile: TileConfig) -> tuple:
        return row_reader(call.query, tile.queries), row_reader(call.key, tile.keys)

    def row_arguments(tile: TileConfig) -> tuple[int, tuple]:
        return block_count(q_len, tile.queries) * heads * batch, (*readers(tile), *inputs, *row_sums)

    def column_arguments(tile: TileConfig) -> tuple[int, tuple]:
        return block_count(kv_len, tile.keys) * heads * batch, (
            *readers(tile),
            *inputs,
            columns,
            *(row_sums if in_one_pass else (None, None)),
            cells,
            transpose_block_ranges(call, logit_params, tile),
        )

    def row_constants(tile: TileConfig) -> dict[str, Any]:
        return {"PRECISION": precision, **constants(call, tile)}

    def column_constants(tile: TileConfig) -> dict[str, Any]:
        bins = () if spec is None else (q_len // spec.rows, kv_len // spec.cols, spec.reduce == "mean")
        return {"OPTIONS": (precision, *bins), **constants(call, tile)}

    if not in_one_pass and any(sums is not None for sums in row_sums):
        launch("observe_rows", _row_statistics, call, layout, row_arguments, row_constants, tile=tile)
    if columns is not None:
        heatmap = cells is not None
        launch(
            "observe_columns", _column_statistics, call, layout, column_arguments, column_constants, heatmap=heatmap,
            tile=tile,
        )  # fmt: skip


def can_fuse_pooling(call: AttentionCall, spec: PoolSpec) -> bool:
    """Return whether pooling can be fused with column sums: a tile must consist of bins, or a bin of tiles."""

    def fit(length: int, count: int) -> bool:
        size, rest = divmod(length, count)
        return rest == 0 and size >= WARP_ROWS.value and size == next_power_of_2(size)

    return fit(call.query.shape[2], spec.rows) and fit(call.key.shape[2], spec.cols)


@triton.jit
def tile_weights(
    query, key, shift, logit_params, batch, head, rows, keys, first, last, PRECISION: tl.constexpr, MASKED: tl.constexpr
):
    """Return the weights of a tile `[BLOCK_Q, BLOCK_K]`, and their logarithms in base 2."""
    products = dot_transposed(query, key, PRECISION)
    logits = finish_logits(
        products, logit_params, batch, head, rows[:, None], keys[None, :], first[:, None], last[:, None], MASKED
    )
    logarithms = logits * deferred_scale(logit_params) - shift[:, None]
    weights = tl.exp2(logarithms)
    if MASKED or logit_params.bias is not None:
        # 0 · −∞ would be nan
        logarithms = tl.where(weights > 0, logarithms, 0.0)
    return weights, logarithms


@triton.jit
def _row_sums(weights, logarithms, entropies, distances, origin, rows, keys):
    """Return −Σ A ln A and Σ A · distance over the keys of a tile, as requested: `[BLOCK_Q]` or `[BLOCK_Q, 2]`."""
    if distances is None:
        return tl.sum(weights * logarithms, 1) * -LN_2
    else:
        distance_sums = tl.sum(weights * distance(origin, rows[:, None], keys[None, :]), 1)
        if entropies is None:
            return distance_sums
        else:
            return tl.join(tl.sum(weights * logarithms, 1) * -LN_2, distance_sums)


@triton.jit
def _row_pointers(entropies, distances, logit_params, batch, head, rows):
    """Return pointers to the row sums, interleaved if there are two; memory extends beyond the last row."""
    offsets = (batch * logit_params.heads + head) * logit_params.length + rows
    if distances is None:
        return entropies + offsets
    elif entropies is None:
        return distances + offsets
    else:
        return entropies + offsets[:, None] * 2 + tl.arange(0, 2)[None, :]


@triton.jit
def _row_statistics(
    query,
    key,
    logit_params,
    shift,
    entropies,
    distances,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    RANGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    start, rows, head, batch = query_block(logit_params, BLOCK_Q)
    tile = load_rows(query, batch, head, start, BLOCK_Q, BLOCK_D)
    row_lse = load_row_values(shift, logit_params, batch, head, rows)
    fixed = (
        tile,
        row_lse,
        key,
        logit_params,
        entropies,
        distances,
        query_offset(logit_params, batch),
        batch,
        head,
        rows,
    )
    if entropies is not None and distances is not None:
        state = tl.zeros([BLOCK_Q, 2], dtype=tl.float32)
    else:
        state = tl.zeros([BLOCK_Q], dtype=tl.float32)
    state = loop_over_keys(
        _add_keys, state, fixed, logit_params, batch, rows, 0, key_length(logit_params), BLOCK_K, RANGES, PRECISION
    )
    tl.store(_row_pointers(entropies, distances, logit_params, batch, head, rows), state)


@triton.jit
def _add_keys(
    state, fixed, key_start, first, last, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr
):
    """Add the row sums over the tile of keys at `key_start`."""
    query, shift, key, logit_params, entropies, distances, origin, batch, head, rows = fixed
    keys = key_start + tl.arange(0, BLOCK_K)
    tile = load_rows(key, batch, head // logit_params.group, key_start, BLOCK_K, query.shape[1])
    weights, logarithms = tile_weights(
        query, tile, shift, logit_params, batch, head, rows, keys, first, last, PRECISION, MASKED
    )
    return state + _row_sums(weights, logarithms, entropies, distances, origin, rows, keys)


@triton.jit
def _column_statistics(
    query,
    key,
    logit_params,
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
    block, head, batch = program_block(key_length(logit_params), logit_params.heads, logit_params.batches, BLOCK_K)
    keys = block * BLOCK_K + tl.arange(0, BLOCK_K)
    tile = load_rows(key, batch, head // logit_params.group, block * BLOCK_K, BLOCK_K, BLOCK_D)
    fixed = (
        tile,
        query,
        logit_params,
        shift,
        entropies,
        distances,
        cells,
        query_offset(logit_params, batch),
        batch,
        head,
        keys,
    )
    weight_sums = tl.zeros([BLOCK_Q, BLOCK_K], dtype=tl.float32)
    weight_sums = loop_over_queries(
        _add_queries,
        weight_sums,
        fixed,
        logit_params,
        seen,
        batch,
        block,
        BLOCK_Q,
        BLOCK_K,
        RANGES,
        OPTIONS,
        num_stages,
    )
    pointers = columns + (batch * logit_params.heads + head) * key_length(logit_params) + keys
    tl.store(pointers, tl.sum(weight_sums, 0), keys < key_length(logit_params))


@triton.jit
def _add_queries(
    weight_sums, fixed, range_index, start, BLOCK_Q: tl.constexpr, OPTIONS: tl.constexpr, MASKED: tl.constexpr
):
    """Add the weights of the query block at `start` to column sums, and in memory to row sums and bins."""
    key, query, logit_params, shift, entropies, distances, cells, origin, batch, head, keys = fixed
    PRECISION: tl.constexpr = OPTIONS[0]
    rows = start + tl.arange(0, BLOCK_Q)
    tile = load_rows(query, batch, head, start, BLOCK_Q, key.shape[1])
    row_lse = load_row_values(shift, logit_params, batch, head, rows)
    first, last = range_ends(logit_params, range_index, batch, rows)
    weights, logarithms = tile_weights(
        tile, key, row_lse, logit_params, batch, head, rows, keys, first, last, PRECISION, MASKED
    )
    if entropies is not None or distances is not None:
        pointers = _row_pointers(entropies, distances, logit_params, batch, head, rows)
        sums = _row_sums(weights, logarithms, entropies, distances, origin, rows, keys)
        tl.atomic_add(pointers, sums, sem="relaxed")
    if cells is not None:
        _add_to_bins(cells, weights, logit_params, batch, head, start, tl.min(keys), OPTIONS)
    return weight_sums + weights


@triton.jit
def _add_to_bins(cells, weights, logit_params, batch, head, row, key, OPTIONS: tl.constexpr):
    """Add the sums, or apply the maxima, of a tile to the bins it overlaps, one warp's rows at a time."""
    BIN_Q: tl.constexpr = OPTIONS[1]
    BIN_K: tl.constexpr = OPTIONS[2]
    MEAN: tl.constexpr = OPTIONS[3]
    HIGH: tl.constexpr = min(BIN_Q, WARP_ROWS)
    WIDE: tl.constexpr = min(BIN_K, weights.shape[1])
    DOWN: tl.constexpr = weights.shape[0] // HIGH
    ACROSS: tl.constexpr = weights.shape[1] // WIDE
    parts = weights.reshape(DOWN, HIGH, ACROSS, WIDE).permute(0, 2, 1, 3).reshape(DOWN, ACROSS, HIGH * WIDE)
    rows = (row + HIGH * tl.arange(0, DOWN)) // BIN_Q
    columns = (key + WIDE * tl.arange(0, ACROSS)) // BIN_K
    down, across = query_length(logit_params) // BIN_Q, key_length(logit_params) // BIN_K
    offsets = ((batch * logit_params.heads + head) * down + rows[:, None]) * across + columns[None, :]
    inside = (rows < down)[:, None] & (columns < across)[None, :]
    if MEAN:
        tl.atomic_add(cells + offsets, tl.sum(parts, 2), inside, sem="relaxed")
    else:
        tl.atomic_max(cells + offsets, tl.max(parts, 2), inside, sem="relaxed")
