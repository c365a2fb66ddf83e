"""Products of the matrix in Triton: with spans of keys, in float32, and of its transpose with rows."""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from clearhead.ops.call import AttentionCall
from clearhead.ops.triton.block_ranges import transpose_block_ranges
from clearhead.ops.triton.config import (
    TileConfig,
    block_count,
    constants,
    matmul_precision,
    padded_width,
    value_constants,
)
from clearhead.ops.triton.launch import launch, layout_of_call
from clearhead.ops.triton.logits import (
    LogitParams,
    StridedTensor,
    deferred_scale,
    dot,
    dot_transposed,
    finish_logits,
    gather_rows,
    key_length,
    load_row_values,
    load_rows,
    prepare_lse,
    row_reader,
    store_rows,
)
from clearhead.ops.triton.schedule import loop_over_keys, loop_over_queries, program_block, query_block, range_ends
from clearhead.ops.triton.statistics import tile_weights

MAX_WIDTH = 128  # columns of a factor in one launch
MAX_SPANS = 32  # spans in one launch


def transposed_product(call: AttentionCall, lse: Tensor, rows: Tensor) -> Tensor:
    """Return Aᵀ · rows for each head, in float32; `rows` have the dtype of the queries."""
    parts = [_transposed_columns(call, lse, part) for part in rows.split(MAX_WIDTH, dim=-1)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def _transposed_columns(call: AttentionCall, lse: Tensor, rows: Tensor) -> Tensor:
    batch, heads, _, kv_len = call.shape
    result = lse.new_empty((batch, heads, kv_len, rows.shape[3]))
    call = replace(call, value=rows)  # the tensor whose width determines the tile
    logit_params, shift = LogitParams.from_call(call), prepare_lse(lse)

    def arguments(tile: TileConfig) -> tuple[int, tuple]:
        return block_count(kv_len, tile.keys) * heads * batch, (
            row_reader(call.query, tile.queries),
            row_reader(rows, tile.queries),
            row_reader(call.key, tile.keys),
            logit_params,
            shift,
            StridedTensor.from_tensor(result),
            transpose_block_ranges(call, logit_params, tile),
        )

    launch(
        "transposed_product", _transposed_product, call, layout_of_call(call), arguments,
        lambda tile: value_constants(call, tile),
    )  # fmt: skip
    return result


def mass(call: AttentionCall, lse: Tensor, members: Tensor) -> Tensor:
    """Return A · members, `[batch, heads, q_len, spans]`, in float32.

    Args:
        call: the attention call.
        lse: log-sum-exp of each row's scores.
        members: 1 for each key of a span, `[batch or 1, kv_len, spans]`.
    """
    return torch.cat([_mass(call, lse, part.contiguous()) for part in members.split(MAX_SPANS, dim=-1)], dim=-1)


def _mass(call: AttentionCall, lse: Tensor, members: Tensor) -> Tensor:
    batch, heads, q_len, kv_len = call.shape
    spans = members.shape[2]
    result = lse.new_empty((batch, heads, q_len, spans))
    logit_params, shift = LogitParams.from_call(call), prepare_lse(lse)
    layout = layout_of_call(call, members)

    def arguments(tile: TileConfig) -> tuple[int, tuple]:
        return block_count(q_len, tile.queries) * heads * batch, (
            row_reader(call.query, tile.queries),
            row_reader(call.key, tile.keys),
            logit_params,
            shift,
            StridedTensor.from_tensor(members[:, None], (batch, heads, kv_len, spans)),
            StridedTensor.from_tensor(result),
        )

    def compile_time(tile: TileConfig) -> dict[str, Any]:
        precision = matmul_precision(call.query.dtype)
        return {"SPANS": padded_width(spans), "PRECISION": precision, **constants(call, tile)}

    launch("mass", _span_mass, call, layout, arguments, compile_time)
    return result


@triton.jit
def _transposed_product(
    query,
    given,
    key,
    logit_params,
    shift,
    result,
    seen,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    RANGES: tl.constexpr,
    PRECISION: tl.constexpr,
    num_stages: tl.constexpr,
):
    block, head, batch = program_block(key_length(logit_params), logit_params.heads, logit_params.batches, BLOCK_K)
    keys = block * BLOCK_K + tl.arange(0, BLOCK_K)
    tile = load_rows(key, batch, head // logit_params.group, block * BLOCK_K, BLOCK_K, BLOCK_D)
    fixed = (tile, query, given, logit_params, shift, batch, head, keys)
    state = tl.zeros([BLOCK_K, BLOCK_V], dtype=tl.float32)
    state = loop_over_queries(
        _add_rows, state, fixed, logit_params, seen, batch, block, BLOCK_Q, BLOCK_K, RANGES, PRECISION, num_stages
    )
    store_rows(result, batch, head, keys, state)


@triton.jit
def _add_rows(state, fixed, range_index, start, BLOCK_Q: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr):
    """Add the product of the query block at `start`."""
    key, query, given, logit_params, shift, batch, head, keys = fixed
    rows = start + tl.arange(0, BLOCK_Q)
    query_tile = load_rows(query, batch, head, start, BLOCK_Q, key.shape[1])
    given_tile = load_rows(given, batch, head, start, BLOCK_Q, state.shape[1])
    row_lse = load_row_values(shift, logit_params, batch, head, rows)
    first, last = range_ends(logit_params, range_index, batch, rows)
    # transposed, [BLOCK_K, BLOCK_Q], so that the product below needs no transpose
    products = dot_transposed(key, query_tile, PRECISION)
    logits = finish_logits(
        products, logit_params, batch, head, rows[None, :], keys[:, None], first[None, :], last[None, :], MASKED
    )
    weights = tl.exp2(logits * deferred_scale(logit_params) - row_lse[None, :])
    return dot(weights.to(given_tile.dtype), given_tile, state, PRECISION)


@triton.jit
def _span_mass(
    query,
    key,
    logit_params,
    shift,
    members,
    result,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    RANGES: tl.constexpr,
    PRECISION: tl.constexpr,
    SPANS: tl.constexpr,
):
    start, rows, head, batch = query_block(logit_params, BLOCK_Q)
    tile = load_rows(query, batch, head, start, BLOCK_Q, BLOCK_D)
    row_lse = load_row_values(shift, logit_params, batch, head, rows)
    fixed = (tile, row_lse, key, members, logit_params, batch, head, rows)
    state = tl.zeros([BLOCK_Q, SPANS], dtype=tl.float32)
    state = loop_over_keys(
        _add_members, state, fixed, logit_params, batch, rows, 0, key_length(logit_params), BLOCK_K, RANGES, PRECISION
    )
    store_rows(result, batch, head, rows, state)


@triton.jit
def _add_members(
    state, fixed, key_start, first, last, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr
):
    """Add the weights of the tile of keys at `key_start` to the spans that contain them."""
    query, row_lse, key, members, logit_params, batch, head, rows = fixed
    keys = key_start + tl.arange(0, BLOCK_K)
    tile = load_rows(key, batch, head // logit_params.group, key_start, BLOCK_K, query.shape[1])
    weights, _ = tile_weights(
        query, tile, row_lse, logit_params, batch, head, rows, keys, first, last, PRECISION, MASKED
    )
    # three TF32 products of the parts of a float32 number: as exact as float32, on tensor cores
    return tl.dot(weights, gather_rows(members, batch, head, keys, state.shape[1]), state, input_precision="tf32x3")
