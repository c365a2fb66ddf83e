"""The forward pass in Triton: output and log-sum-exp, one program for each block of queries of a head."""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from clearhead.kernels.operation import Inputs
from clearhead.kernels.triton_dropout import Dropout, survival
from clearhead.kernels.triton_scores import Matrix, Scores, dot, range_ends, scored, span, store_rows, tile_of
from clearhead.kernels.triton_tiles import Tile, padded, precision, tile_for

LN_2 = tl.constexpr(0.6931471805599453)


def forward(inputs: Inputs, tile: Tile | None = None) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp."""
    query, value = inputs.query, inputs.value
    batch, heads, q_len, key_dim = query.shape
    value_dim = value.shape[3]
    output = query.new_empty((batch, heads, q_len, value_dim))
    lse = query.new_empty((batch, heads, q_len), dtype=torch.float32)
    if 0 in (batch, heads, q_len):
        return output, lse
    tile = tile or tile_for("forward", query.dtype, max(key_dim, value_dim), q_len)
    grid = (triton.cdiv(q_len, tile.queries) * heads * batch,)
    _forward[grid](
        Scores.of(inputs),
        Matrix.of(value),
        Matrix.of(output),
        lse,
        inputs.sinks,
        Dropout.of(inputs),
        KEY_DIM=key_dim,
        VALUE_DIM=value_dim,
        BLOCK_Q=tile.queries,
        BLOCK_K=tile.keys,
        BLOCK_D=padded(key_dim),
        BLOCK_V=padded(value_dim),
        RANGES=0 if inputs.ranges is None else inputs.ranges.shape[0],
        PRECISION=precision(query.dtype),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return output, lse


@triton.jit
def _forward(
    scores,
    value,
    output,
    lse,
    sinks,
    dropout,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    RANGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    blocks = tl.cdiv(scores.q_len, BLOCK_Q)
    program = tl.program_id(0)
    # late queries see most keys where a mask is causal: longest work first
    block = blocks - 1 - program % blocks
    head = (program // blocks % scores.heads).to(tl.int64)
    batch = (program // blocks // scores.heads).to(tl.int64)
    rows = block * BLOCK_Q + tl.arange(0, BLOCK_Q)
    inside = rows < scores.q_len
    columns, value_columns = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    query = tile_of(scores.query, batch, head, rows, columns, scores.q_len, KEY_DIM, True)  # [BLOCK_Q, BLOCK_D]
    summed = tl.zeros([BLOCK_Q, BLOCK_V], dtype=tl.float32)
    # a sink is a first key without a value
    if sinks is not None:
        peak = tl.zeros([BLOCK_Q], dtype=tl.float32) + tl.load(sinks + head).to(tl.float32) / LN_2
        total = tl.full([BLOCK_Q], 1.0, dtype=tl.float32)
    else:
        peak = tl.full([BLOCK_Q], -float("inf"), dtype=tl.float32)
        total = tl.zeros([BLOCK_Q], dtype=tl.float32)
    # fmt: off
    if RANGES == 0:
        first, last = tl.zeros_like(rows), tl.zeros_like(rows) + scores.kv_len
        whole = 0 if scores.dense is not None else scores.kv_len // BLOCK_K * BLOCK_K
        if scores.dense is None:
            summed, total, peak = _add_keys(
                summed, total, peak, query, scores, value, dropout, batch, head, rows, first, last, 0, whole,
                False, KEY_DIM, VALUE_DIM, BLOCK_K, BLOCK_D, BLOCK_V, PRECISION)
        summed, total, peak = _add_keys(
            summed, total, peak, query, scores, value, dropout, batch, head, rows, first, last, whole,
            scores.kv_len, True, KEY_DIM, VALUE_DIM, BLOCK_K, BLOCK_D, BLOCK_V, PRECISION)
    for number in tl.static_range(RANGES):
        first, last = range_ends(scores, number, batch, rows)
        start, full, partial, end = span(scores, first, last, rows, BLOCK_K)
        if scores.dense is not None:
            full, partial = end, end
        summed, total, peak = _add_keys(
            summed, total, peak, query, scores, value, dropout, batch, head, rows, first, last, start, full,
            True, KEY_DIM, VALUE_DIM, BLOCK_K, BLOCK_D, BLOCK_V, PRECISION)
        if scores.dense is None:
            summed, total, peak = _add_keys(
                summed, total, peak, query, scores, value, dropout, batch, head, rows, first, last, full, partial,
                False, KEY_DIM, VALUE_DIM, BLOCK_K, BLOCK_D, BLOCK_V, PRECISION)
        summed, total, peak = _add_keys(
            summed, total, peak, query, scores, value, dropout, batch, head, rows, first, last, partial, end,
            True, KEY_DIM, VALUE_DIM, BLOCK_K, BLOCK_D, BLOCK_V, PRECISION)
    # fmt: on
    result = summed / tl.where(total > 0, total, 1.0)[:, None]
    store_rows(output, batch, head, rows, value_columns, result, scores.q_len, VALUE_DIM)
    logarithm = tl.where(total > 0, (peak + tl.log2(tl.where(total > 0, total, 1.0))) * LN_2, -float("inf"))
    tl.store(lse + (batch * scores.heads + head) * scores.q_len + rows, logarithm, inside)


@triton.jit
def _add_keys(
    summed, total, peak, query, scores, value, dropout, batch, head, rows, first, last, start, end,
    MASKED: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Take the keys from `start` to `end` into the running sum, sum of exponentials and maximum."""
    columns, value_columns = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    key_head = head // scores.group
    for place in range(start, end, BLOCK_K):
        keys = place + tl.arange(0, BLOCK_K)
        key_tile = tl.trans(tile_of(scores.key, batch, key_head, keys, columns, scores.kv_len, KEY_DIM, MASKED))
        nothing = tl.zeros([query.shape[0], BLOCK_K], dtype=tl.float32)
        products = dot(query, key_tile, nothing, PRECISION)  # [BLOCK_Q, BLOCK_K]
        logits = scored(
            products, scores, batch, head, rows[:, None], keys[None, :], first[:, None], last[:, None], MASKED
        )
        new_peak = tl.maximum(peak, tl.max(logits, 1))
        # a row with no key yet has max = -inf; subtracting it would give nan
        pivot = tl.where(new_peak == -float("inf"), 0.0, new_peak)
        weights = tl.exp2(logits - pivot[:, None])
        shrink = tl.exp2(peak - pivot)
        total = total * shrink + tl.sum(weights, 1)
        if dropout is not None:
            survivors = survival(dropout, batch, head, rows[:, None], keys[None, :], scores.heads, scores.q_len)
            weights = weights * survivors
        value_tile = tile_of(value, batch, key_head, keys, value_columns, scores.kv_len, VALUE_DIM, MASKED)
        summed = dot(weights.to(value_tile.dtype), value_tile, summed * shrink[:, None], PRECISION)
        peak = new_peak
    return summed, total, peak
