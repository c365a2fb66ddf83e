"""Forward pass in Triton: output and log-sum-exp, one program per query block and head."""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from clearhead.ops.call import AttentionCall
from clearhead.ops.triton.config import TileConfig, block_count, value_constants
from clearhead.ops.triton.dropout import DropoutParams, dropout_multiplier
from clearhead.ops.triton.launch import launch, layout_of_call
from clearhead.ops.triton.logits import (
    LN_2,
    LogitParams,
    deferred_scale,
    dot,
    dot_transposed,
    finish_logits,
    key_length,
    load_rows,
    query_length,
    row_indices,
    store_rows,
)
from clearhead.ops.triton.schedule import loop_over_keys, query_block


def forward(call: AttentionCall, tile: TileConfig | None = None) -> tuple[Tensor, Tensor]:
    """Return output and log-sum-exp."""
    query, value = call.query, call.value
    assert value is not None
    batch, heads, q_len, _ = query.shape
    value_dim = value.shape[3]
    output = query.new_empty((batch, heads, q_len, value_dim))
    lse = query.new_empty((batch, heads, q_len), dtype=torch.float32)
    if 0 in (batch, heads, q_len):
        return output, lse
    logit_params, dropout = LogitParams.from_call(call), DropoutParams.from_call(call)

    def arguments(tile: TileConfig) -> tuple[int, tuple]:
        return block_count(q_len, tile.queries) * heads * batch, (
            logit_params,
            dropout,
            lse,
        )

    launch(
        "forward",
        _forward,
        call,
        layout_of_call(call),
        arguments,
        partial(value_constants, call),
        matrices=(query, call.key, value, output),
        rows=("queries", "keys", "keys"),
        tile=tile,
    )
    return output, lse


@triton.jit
def _forward(
    query,
    key,
    value,
    output,
    logit_params,
    dropout,
    lse,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    RANGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    start, rows, head, batch = query_block(logit_params, BLOCK_Q)
    tile = load_rows(query, batch, head, start, BLOCK_Q, BLOCK_D)
    fixed = (tile, key, value, logit_params, dropout, batch, head, head // logit_params.group, rows)
    state = init_softmax(logit_params, head, BLOCK_Q, BLOCK_V)
    kv_len = key_length(logit_params)
    state = loop_over_keys(
        online_softmax_step, state, fixed, logit_params, batch, rows, 0, kv_len, BLOCK_K, RANGES, PRECISION
    )
    result, logarithm = finalize_softmax(state, deferred_scale(logit_params))
    store_rows(output, batch, head, rows, result)
    tl.store(lse + row_indices(logit_params, batch, head, rows), logarithm, rows < query_length(logit_params))


@triton.jit
def init_softmax(logit_params, head, BLOCK_Q: tl.constexpr, BLOCK_V: tl.constexpr):
    """Return the running weighted sum of values, sum of exponentials and maximum, before the first key."""
    row_max = tl.full([BLOCK_Q], -float("inf"), dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_Q], dtype=tl.float32)
    if logit_params.sinks is not None:
        # a sink is a first key without a value
        row_max = tl.zeros([BLOCK_Q], dtype=tl.float32) + tl.load(logit_params.sinks + head).to(tl.float32) / LN_2
        row_sum += 1.0
    return tl.zeros([BLOCK_Q, BLOCK_V], dtype=tl.float32), row_sum, row_max


@triton.jit
def online_softmax_step(
    state, fixed, key_start, first, last, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr
):
    """Return the state after the tile of keys at `key_start`."""
    accumulator, row_sum, row_max = state
    query, key, value, logit_params, dropout, batch, head, key_head, rows = fixed
    keys = key_start + tl.arange(0, BLOCK_K)
    products = dot_transposed(query, load_rows(key, batch, key_head, key_start, BLOCK_K, query.shape[1]), PRECISION)
    logits = finish_logits(
        products, logit_params, batch, head, rows[:, None], keys[None, :], first[:, None], last[:, None], MASKED
    )
    new_max = tl.maximum(row_max, tl.max(logits, 1))
    # a row with no key yet has max = -inf; subtracting it would give nan
    pivot = tl.where(new_max == -float("inf"), 0.0, new_max)
    scale = deferred_scale(logit_params)
    weights = tl.exp2(logits * scale - (pivot * scale)[:, None])  # [BLOCK_Q, BLOCK_K]
    # Exactly 1 if the maximum is the same. The difference of two scaled maxima would have a rounding error, because the
    # compiler fuses one of the products with the subtraction, and the error would grow with every tile.
    rescale = tl.exp2((row_max - pivot) * scale)
    row_sum = row_sum * rescale + tl.sum(weights, 1)
    if dropout is not None:
        indices = row_indices(logit_params, batch, head, rows[:, None])
        weights = weights * dropout_multiplier(dropout, indices, keys[None, :])
    values = load_rows(value, batch, key_head, key_start, BLOCK_K, accumulator.shape[1])
    accumulator = dot(weights.to(values.dtype), values, accumulator * rescale[:, None], PRECISION)
    return accumulator, row_sum, new_max


@triton.jit
def finalize_softmax(state, scale):
    """Return output and log-sum-exp: 0 and −∞ for a row without a key."""
    accumulator, row_sum, row_max = state
    some = row_sum != 0  # also if it is NaN
    row_sum = tl.where(some, row_sum, 1.0)
    return accumulator / row_sum[:, None], tl.where(some, (row_max * scale + tl.log2(row_sum)) * LN_2, -float("inf"))
