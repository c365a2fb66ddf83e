"""The forward pass in Triton: output and log-sum-exp, one program for each block of queries of a head."""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from clearhead.ops.call import AttentionCall
from clearhead.ops.triton.config import TileConfig, block_count, constants, matmul_precision, padded_width, tile_for
from clearhead.ops.triton.dropout import DropoutParams, dropout_multiplier
from clearhead.ops.triton.logits import (
    LN_2,
    LogitParams,
    StridedTensor,
    dot,
    product,
    rows_at,
    rows_of,
    scored,
    store_rows,
    unit,
)
from clearhead.ops.triton.schedule import over_keys, own_rows


def forward(call: AttentionCall, tile: TileConfig | None = None) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp."""
    query, value = call.query, call.value
    assert value is not None
    batch, heads, q_len, key_dim = query.shape
    value_dim = value.shape[3]
    output = query.new_empty((batch, heads, q_len, value_dim))
    lse = query.new_empty((batch, heads, q_len), dtype=torch.float32)
    if 0 in (batch, heads, q_len):
        return output, lse
    tile = tile or tile_for("forward", query.dtype, max(key_dim, value_dim), q_len)
    grid = (block_count(q_len, tile.queries) * heads * batch,)
    _forward[grid](
        rows_of(query, tile.queries),
        rows_of(call.key, tile.keys),
        rows_of(value, tile.keys),
        LogitParams.from_call(call),
        DropoutParams.from_call(call),
        StridedTensor.from_tensor(output),
        lse,
        BLOCK_V=padded_width(value_dim),
        PRECISION=matmul_precision(query.dtype),
        **constants(call, tile),
    )
    return output, lse


@triton.jit
def _forward(
    query,
    key,
    value,
    scores,
    dropout,
    output,
    lse,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    RANGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    start, rows, head, batch = own_rows(scores, BLOCK_Q)
    tile = rows_at(query, batch, head, start, BLOCK_Q, BLOCK_D)
    fixed = (tile, key, value, scores, dropout, batch, head, head // scores.group, rows)
    state = no_keys_yet(scores, head, BLOCK_Q, BLOCK_V)
    state = over_keys(take_keys, state, fixed, scores, batch, rows, 0, scores.kv_len, BLOCK_K, RANGES, PRECISION)
    result, logarithm = finished(state, unit(scores))
    store_rows(output, batch, head, rows, result)
    tl.store(lse + (batch * scores.heads + head) * scores.q_len + rows, logarithm, rows < scores.q_len)


@triton.jit
def no_keys_yet(scores, head, BLOCK_Q: tl.constexpr, BLOCK_V: tl.constexpr):
    """The running sum of values, sum of exponentials and maximum, before the first key."""
    peak = tl.full([BLOCK_Q], -float("inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_Q], dtype=tl.float32)
    if scores.sinks is not None:
        # a sink is a first key without a value
        peak = tl.zeros([BLOCK_Q], dtype=tl.float32) + tl.load(scores.sinks + head).to(tl.float32) / LN_2
        total += 1.0
    return tl.zeros([BLOCK_Q, BLOCK_V], dtype=tl.float32), total, peak


@triton.jit
def take_keys(state, fixed, place, first, last, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr):
    """The state after the keys from `place` on."""
    summed, total, peak = state
    query, key, value, scores, dropout, batch, head, key_head, rows = fixed
    keys = place + tl.arange(0, BLOCK_K)
    products = product(query, rows_at(key, batch, key_head, place, BLOCK_K, query.shape[1]), PRECISION)
    logits = scored(products, scores, batch, head, rows[:, None], keys[None, :], first[:, None], last[:, None], MASKED)
    new_peak = tl.maximum(peak, tl.max(logits, 1))
    # a row with no key yet has max = -inf; subtracting it would give nan
    pivot = tl.where(new_peak == -float("inf"), 0.0, new_peak) * unit(scores)
    weights = tl.exp2(logits * unit(scores) - pivot[:, None])  # [BLOCK_Q, BLOCK_K]
    shrink = tl.exp2(peak * unit(scores) - pivot)
    total = total * shrink + tl.sum(weights, 1)
    if dropout is not None:
        survivors = dropout_multiplier(dropout, batch, head, rows[:, None], keys[None, :], scores.heads, scores.q_len)
        weights = weights * survivors
    values = rows_at(value, batch, key_head, place, BLOCK_K, summed.shape[1])
    summed = dot(weights.to(values.dtype), values, summed * shrink[:, None], PRECISION)
    return summed, total, new_peak


@triton.jit
def finished(state, unit):
    """Output and log-sum-exp: 0 and −∞ where a row may attend to nothing."""
    summed, total, peak = state
    some = total > 0
    total = tl.where(some, total, 1.0)
    return summed / total[:, None], tl.where(some, (peak * unit + tl.log2(total)) * LN_2, -float("inf"))
