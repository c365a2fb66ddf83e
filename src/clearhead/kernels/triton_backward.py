"""The backward pass in Triton. One program owns what it sums, so that the same call gives the same bits.

The gradient of queries goes over keys as the forward pass does. The gradients of keys and values go over the blocks of
queries that see a block of keys, and over all query heads that read its key head.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from clearhead.kernels import streaming
from clearhead.kernels.operation import Gradients, Inputs, Results
from clearhead.kernels.triton_blocks import seen_by
from clearhead.kernels.triton_dropout import Dropout, survival
from clearhead.kernels.triton_scores import (
    LOG2_E,
    Matrix,
    Scores,
    distance,
    dot,
    range_ends,
    scored,
    span,
    store_rows,
    tanh,
    tile_of,
)
from clearhead.kernels.triton_tiles import Kernel, Tile, padded, precision, tile_for


def backward(inputs: Inputs, results: Results, need_bias: bool) -> Gradients:
    """All gradients; that of a tensor bias, to be summed over any of its axes, is left to `streaming`."""
    if need_bias or 0 in (*inputs.query.shape[:3], inputs.key.shape[2]):
        return streaming.backward(inputs, results, need_bias)
    call = Call.of(inputs, results)
    grad_query, felt = grad_of_query(call)
    grad_key, grad_value = grad_of_key(call)
    grad_bias, grad_slopes, grad_sinks = (call.row_dot.new_zeros(0) for _ in range(3))
    if felt is not None and inputs.slopes is not None:
        grad_slopes = -felt.sum(dim=(0, 2)).to(inputs.slopes.dtype)
    if inputs.sinks is not None:
        share = torch.exp(inputs.sinks.float()[:, None] - results.lse)  # what the sink takes: [batch, heads, q_len]
        grad_sinks = -(share * call.row_dot).sum(dim=(0, 2)).to(inputs.sinks.dtype)
    return Gradients(grad_query, grad_key, grad_value, grad_bias, grad_slopes, grad_sinks)


@dataclass(frozen=True, eq=False)
class Call:
    """What both kernels read."""

    inputs: Inputs
    scores: Scores
    grad_output: Tensor
    lse: Tensor
    row_dot: Tensor  # Σⱼ A·dA of each row; the gradient of lse enters with the opposite sign

    @classmethod
    def of(cls, inputs: Inputs, results: Results) -> Call:
        grad_output = results.grad_output.to(inputs.query.dtype)
        row_dot = (grad_output.float() * results.output.float()).sum(dim=-1) - results.grad_lse
        return cls(inputs, Scores.of(inputs), grad_output, results.lse.contiguous(), row_dot.contiguous())

    def tile(self, kernel: Kernel) -> Tile:
        query, value = self.inputs.query, self.inputs.value
        return tile_for(kernel, query.dtype, max(query.shape[3], value.shape[3]), query.shape[2])

    def arguments(self) -> tuple:
        inputs = self.inputs
        matrices = (Matrix.of(inputs.value), Matrix.of(self.grad_output))
        return self.scores, *matrices, self.lse, self.row_dot, Dropout.of(inputs), inputs.scale

    def constants(self, tile: Tile) -> dict[str, int | str]:
        key_dim, value_dim = self.inputs.query.shape[3], self.inputs.value.shape[3]
        return {
            "KEY_DIM": key_dim,
            "VALUE_DIM": value_dim,
            "BLOCK_Q": tile.queries,
            "BLOCK_K": tile.keys,
            "BLOCK_D": padded(key_dim),
            "BLOCK_V": padded(value_dim),
            "RANGES": 0 if self.inputs.ranges is None else self.inputs.ranges.shape[0],
            "PRECISION": precision(self.inputs.query.dtype),
            "num_warps": tile.warps,
            "num_stages": tile.stages,
        }


def grad_of_query(call: Call, tile: Tile | None = None) -> tuple[Tensor, Tensor | None]:
    """The gradient of queries; with ALiBi, also how much each row feels of its slope."""
    query, tile = call.inputs.query, tile or call.tile("backward_query")
    grad = torch.empty_like(query, memory_format=torch.contiguous_format)
    felt = None if call.inputs.slopes is None else torch.empty_like(call.row_dot)
    batch, heads, q_len, _ = query.shape
    grid = (triton.cdiv(q_len, tile.queries) * heads * batch,)
    _backward_query[grid](*call.arguments(), Matrix.of(grad), felt, **call.constants(tile))
    return grad, felt


def grad_of_key(call: Call, tile: Tile | None = None) -> tuple[Tensor, Tensor]:
    """The gradients of keys and values."""
    key, tile = call.inputs.key, tile or call.tile("backward_key")
    grads = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (key, call.inputs.value)]
    batch, kv_heads, kv_len, _ = key.shape
    blocks, ranges = triton.cdiv(kv_len, tile.keys), call.inputs.ranges
    seen = None if ranges is None else seen_by(ranges, kv_len, tile)
    strides = (0, 0) if seen is None else (0 if seen.shape[2] == 1 else blocks, blocks * seen.shape[2])
    _backward_key[(blocks * kv_heads * batch,)](
        *call.arguments(), *map(Matrix.of, grads), seen, *strides, kv_heads, **call.constants(tile)
    )
    return grads[0], grads[1]


@triton.jit
def _backward_query(
    scores,
    value,
    grad_output,
    lse,
    row_dot,
    dropout,
    scale,
    grad_query,
    felt,
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
    block = blocks - 1 - program % blocks
    head = (program // blocks % scores.heads).to(tl.int64)
    batch = (program // blocks // scores.heads).to(tl.int64)
    rows = block * BLOCK_Q + tl.arange(0, BLOCK_Q)
    query, grad, shift, dots = _rows_at(
        scores, grad_output, lse, row_dot, batch, head, rows, KEY_DIM, VALUE_DIM, BLOCK_D, BLOCK_V
    )
    summed = tl.zeros([BLOCK_Q, BLOCK_D], dtype=tl.float32)
    feeling = tl.zeros([BLOCK_Q], dtype=tl.float32)
    # fmt: off
    if RANGES == 0:
        first, last = tl.zeros_like(rows), tl.zeros_like(rows) + scores.kv_len
        whole = 0 if scores.dense is not None else scores.kv_len // BLOCK_K * BLOCK_K
        if scores.dense is None:
            summed, feeling = _over_keys(
                summed, feeling, query, grad, shift, dots, scores, value, dropout, batch, head, rows, first, last, 0,
                whole, False, KEY_DIM, VALUE_DIM, BLOCK_K, BLOCK_D, BLOCK_V, PRECISION)
        summed, feeling = _over_keys(
            summed, feeling, query, grad, shift, dots, scores, value, dropout, batch, head, rows, first, last, whole,
            scores.kv_len, True, KEY_DIM, VALUE_DIM, BLOCK_K, BLOCK_D, BLOCK_V, PRECISION)
    for number in tl.static_range(RANGES):
        first, last = range_ends(scores, number, batch, rows)
        start, full, partial, end = span(scores, first, last, rows, BLOCK_K)
        if scores.dense is not None:
            full, partial = end, end
        summed, feeling = _over_keys(
            summed, feeling, query, grad, shift, dots, scores, value, dropout, batch, head, rows, first, last, start,
            full, True, KEY_DIM, VALUE_DIM, BLOCK_K, BLOCK_D, BLOCK_V, PRECISION)
        if scores.dense is None:
            summed, feeling = _over_keys(
                summed, feeling, query, grad, shift, dots, scores, value, dropout, batch, head, rows, first, last, full,
                partial, False, KEY_DIM, VALUE_DIM, BLOCK_K, BLOCK_D, BLOCK_V, PRECISION)
        summed, feeling = _over_keys(
            summed, feeling, query, grad, shift, dots, scores, value, dropout, batch, head, rows, first, last, partial,
            end, True, KEY_DIM, VALUE_DIM, BLOCK_K, BLOCK_D, BLOCK_V, PRECISION)
    # fmt: on
    store_rows(grad_query, batch, head, rows, tl.arange(0, BLOCK_D), summed * scale, scores.q_len, KEY_DIM)
    if felt is not None:
        tl.store(felt + (batch * scores.heads + head) * scores.q_len + rows, feeling, rows < scores.q_len)


@triton.jit
def _rows_at(
    scores, grad_output, lse, row_dot, batch, head, rows,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """What a block of queries brings: itself, the gradient of its output, log-sum-exp in base 2 and row_dot."""
    inside = rows < scores.q_len
    columns, value_columns = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    query = tile_of(scores.query, batch, head, rows, columns, scores.q_len, KEY_DIM, True)
    grad = tile_of(grad_output, batch, head, rows, value_columns, scores.q_len, VALUE_DIM, True)
    place = (batch * scores.heads + head) * scores.q_len + rows
    shift = tl.load(lse + place, inside, other=0.0) * LOG2_E
    # a row without a key has lse = -inf and scores -inf; subtracting would give nan
    shift = tl.where(shift == -float("inf"), 0.0, shift)
    return query, grad, shift, tl.load(row_dot + place, inside, other=0.0)


@triton.jit
def _over_keys(
    summed, feeling, query, grad, shift, dots, scores, value, dropout, batch, head, rows, first, last, start, end,
    MASKED: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add what the keys from `start` to `end` give to the gradient of a block of queries, and of its ALiBi slope."""
    columns, value_columns = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    key_head = head // scores.group
    for place in range(start, end, BLOCK_K):
        keys = place + tl.arange(0, BLOCK_K)
        key = tile_of(scores.key, batch, key_head, keys, columns, scores.kv_len, KEY_DIM, MASKED)
        value_tile = tile_of(value, batch, key_head, keys, value_columns, scores.kv_len, VALUE_DIM, MASKED)
        nothing = tl.zeros([rows.shape[0], BLOCK_K], dtype=tl.float32)
        products = dot(query, tl.trans(key), nothing, PRECISION)  # [BLOCK_Q, BLOCK_K]
        grad_weights = dot(grad, tl.trans(value_tile), nothing, PRECISION)
        _, grad_scores, slope = _cell_gradients(
            products, grad_weights, shift[:, None], dots[:, None], scores, dropout, batch, head, rows[:, None],
            keys[None, :], first[:, None], last[:, None], MASKED)  # fmt: skip
        if scores.slopes is not None:
            feeling += tl.sum(grad_scores * distance(scores, batch, rows[:, None], keys[None, :]), 1)
        summed = dot((grad_scores * slope).to(key.dtype), key, summed, PRECISION)
    return summed, feeling


@triton.jit
def _cell_gradients(
    products, grad_weights, shift, dots, scores, dropout, batch, head, rows, keys, first, last, MASKED: tl.constexpr
):
    """Of each cell of a tile, either way round: the weight as it was used, the gradient of the score, and d softcap."""
    weights = tl.exp2(scored(products, scores, batch, head, rows, keys, first, last, MASKED) - shift)
    used = weights
    if dropout is not None:
        survivors = survival(dropout, batch, head, rows, keys, scores.heads, scores.q_len)
        used = weights * survivors
        grad_weights = grad_weights * survivors
    slope = 1.0
    if scores.softcap is not None:
        capped = tanh(products * scores.scale)
        slope = 1 - capped * capped
    return used, weights * (grad_weights - dots), slope


@triton.jit
def _backward_key(
    scores,
    value,
    grad_output,
    lse,
    row_dot,
    dropout,
    scale,
    grad_key,
    grad_value,
    seen,
    seen_batch,
    seen_side,
    kv_heads,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    RANGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    blocks = tl.cdiv(scores.kv_len, BLOCK_K)
    program = tl.program_id(0)
    block = program % blocks
    key_head = (program // blocks % kv_heads).to(tl.int64)
    batch = (program // blocks // kv_heads).to(tl.int64)
    keys = block * BLOCK_K + tl.arange(0, BLOCK_K)
    columns, value_columns = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    key = tile_of(scores.key, batch, key_head, keys, columns, scores.kv_len, KEY_DIM, True)
    value_tile = tile_of(value, batch, key_head, keys, value_columns, scores.kv_len, VALUE_DIM, True)
    summed_key = tl.zeros([BLOCK_K, BLOCK_D], dtype=tl.float32)
    summed_value = tl.zeros([BLOCK_K, BLOCK_V], dtype=tl.float32)
    # fmt: off
    for member in range(scores.group):
        head = key_head * scores.group + member
        if RANGES == 0:
            # queries and keys beyond the last have gradients 0, or are not stored: no mask but a dense one
            summed_key, summed_value = _over_queries(
                summed_key, summed_value, key, value_tile, scores, grad_output, lse, row_dot, dropout, batch, head,
                keys, 0, 0, tl.cdiv(scores.q_len, BLOCK_Q), False, scores.dense is not None, KEY_DIM, VALUE_DIM,
                BLOCK_Q, BLOCK_D, BLOCK_V, PRECISION)
        for number in tl.static_range(RANGES):
            place = seen + 4 * number * seen_side + batch * seen_batch + block
            start, full = tl.load(place), tl.load(place + seen_side)
            partial, end = tl.load(place + 2 * seen_side), tl.load(place + 3 * seen_side)
            if scores.dense is not None:
                full, partial = end, end
            summed_key, summed_value = _over_queries(
                summed_key, summed_value, key, value_tile, scores, grad_output, lse, row_dot, dropout, batch, head,
                keys, number, start, full, True, True, KEY_DIM, VALUE_DIM, BLOCK_Q, BLOCK_D, BLOCK_V, PRECISION)
            if scores.dense is None:
                summed_key, summed_value = _over_queries(
                    summed_key, summed_value, key, value_tile, scores, grad_output, lse, row_dot, dropout, batch, head,
                    keys, number, full, partial, False, False, KEY_DIM, VALUE_DIM, BLOCK_Q, BLOCK_D, BLOCK_V, PRECISION)
            summed_key, summed_value = _over_queries(
                summed_key, summed_value, key, value_tile, scores, grad_output, lse, row_dot, dropout, batch, head,
                keys, number, partial, end, True, True, KEY_DIM, VALUE_DIM, BLOCK_Q, BLOCK_D, BLOCK_V, PRECISION)
    # fmt: on
    store_rows(grad_key, batch, key_head, keys, columns, summed_key * scale, scores.kv_len, KEY_DIM)
    store_rows(grad_value, batch, key_head, keys, value_columns, summed_value, scores.kv_len, VALUE_DIM)


@triton.jit
def _over_queries(
    summed_key, summed_value, key, value, scores, grad_output, lse, row_dot, dropout, batch, head, keys, number, start,
    end, RANGED: tl.constexpr, MASKED: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add what blocks of queries from `start` to `end` give to the gradients of a block of keys and values."""
    for block in range(start, end):
        rows = block * BLOCK_Q + tl.arange(0, BLOCK_Q)
        query, grad, shift, dots = _rows_at(
            scores, grad_output, lse, row_dot, batch, head, rows, KEY_DIM, VALUE_DIM, BLOCK_D, BLOCK_V
        )
        if RANGED:
            first, last = range_ends(scores, number, batch, rows)
        else:
            first, last = tl.zeros_like(rows), tl.where(rows < scores.q_len, scores.kv_len, 0)
        # transposed, [BLOCK_K, BLOCK_Q], so that the second products need no turning
        nothing = tl.zeros([keys.shape[0], BLOCK_Q], dtype=tl.float32)
        products = dot(key, tl.trans(query), nothing, PRECISION)
        grad_weights = dot(value, tl.trans(grad), nothing, PRECISION)
        used, grad_scores, slope = _cell_gradients(
            products, grad_weights, shift[None, :], dots[None, :], scores, dropout, batch, head, rows[None, :],
            keys[:, None], first[None, :], last[None, :], MASKED)  # fmt: skip
        summed_value = dot(used.to(grad.dtype), grad, summed_value, PRECISION)
        summed_key = dot((grad_scores * slope).to(query.dtype), query, summed_key, PRECISION)
    return summed_key, summed_value
