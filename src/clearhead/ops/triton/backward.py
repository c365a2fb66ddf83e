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

from clearhead.ops._custom_op import Gradients, Inputs, Results
from clearhead.ops.triton.block_ranges import seen_by
from clearhead.ops.triton.config import Kernel, Tile, blocks_of, constants, padded, precision, tile_for
from clearhead.ops.triton.dropout import Dropout, survival
from clearhead.ops.triton.logits import (
    Matrix,
    Scores,
    chosen_rows,
    distance,
    dot,
    log_sum_exp,
    origin,
    product,
    rows_at,
    rows_of,
    scored,
    shift_at,
    store_rows,
    tanh,
    unit,
)
from clearhead.ops.triton.schedule import over_keys, over_queries, own_rows, program_place, range_ends

ROWS = 64  # of one program that prepares them


def backward(inputs: Inputs, results: Results) -> tuple[Call, Gradients]:
    """All gradients but that of a tensor bias, and what it takes to have that too."""
    call = Call.of(inputs, results)
    grad_query, felt = grad_of_query(call)
    grad_key, grad_value = grad_of_key(call)
    grad_bias, grad_slopes, grad_sinks = (call.row_dot.new_empty(0) for _ in range(3))  # results must not be one tensor
    if felt is not None and inputs.slopes is not None:
        grad_slopes = -felt.sum(dim=(0, 2)).to(inputs.slopes.dtype)
    if inputs.sinks is not None:
        share = torch.exp(inputs.sinks.float()[:, None] - results.lse)  # what the sink takes: [batch, heads, q_len]
        grad_sinks = -(share * call.row_dot[..., : share.shape[2]]).sum(dim=(0, 2)).to(inputs.sinks.dtype)
    return call, Gradients(grad_query, grad_key, grad_value, grad_bias, grad_slopes, grad_sinks)


@dataclass(frozen=True, eq=False)
class Call:
    """What the kernels of a backward pass read."""

    inputs: Inputs
    scores: Scores
    grad_output: Tensor
    shift: Tensor  # log-sum-exp in base 2, [batch, heads, scores.length]
    row_dot: Tensor  # Σⱼ A·dA of each row; the gradient of lse enters with the opposite sign

    @classmethod
    def of(cls, inputs: Inputs, results: Results) -> Call:
        grad_output = results.grad_output.to(inputs.query.dtype)
        scores = Scores.of(inputs)
        batch, heads, _ = results.lse.shape
        shift, row_dot = (results.lse.new_empty((batch, heads, scores.length)) for _ in range(2))
        _prepare[(scores.length // ROWS * heads * batch,)](
            Matrix.of(results.output),
            Matrix.of(grad_output),
            scores,
            results.lse.contiguous(),
            results.grad_lse.float().contiguous(),
            shift,
            row_dot,
            ROWS,
            padded(grad_output.shape[3]),
        )
        return cls(inputs, scores, grad_output, shift, row_dot)

    def tile(self, kernel: Kernel) -> Tile:
        query, value = self.inputs.query, self.inputs.value
        return tile_for(kernel, query.dtype, max(query.shape[3], value.shape[3]), query.shape[2])

    def arguments(self, tile: Tile) -> tuple:
        inputs = self.inputs
        return (
            rows_of(inputs.query, tile.queries),
            rows_of(self.grad_output, tile.queries),
            rows_of(inputs.key, tile.keys),
            rows_of(inputs.value, tile.keys),
            self.scores,
            Dropout.of(inputs),
            self.shift,
            self.row_dot,
            inputs.scale,
        )

    def constants(self, tile: Tile) -> dict[str, int | str]:
        own = {"BLOCK_V": padded(self.inputs.value.shape[3]), "PRECISION": precision(self.inputs.query.dtype)}
        return constants(self.inputs, tile) | own


def grad_of_query(call: Call, tile: Tile | None = None) -> tuple[Tensor, Tensor | None]:
    """The gradient of queries; with ALiBi, also how much each row feels of its slope."""
    query, tile = call.inputs.query, tile or call.tile("backward_query")
    grad = torch.empty_like(query, memory_format=torch.contiguous_format)
    felt = None if call.inputs.slopes is None else call.row_dot.new_empty(query.shape[:3])
    batch, heads, q_len, _ = query.shape
    grid = (blocks_of(q_len, tile.queries) * heads * batch,)
    _backward_query[grid](*call.arguments(tile), Matrix.of(grad), felt, **call.constants(tile))
    return grad, felt


def grad_of_key(call: Call, tile: Tile | None = None) -> tuple[Tensor, Tensor]:
    """The gradients of keys and values."""
    key, tile = call.inputs.key, tile or call.tile("backward_key")
    grads = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (key, call.inputs.value)]
    batch, kv_heads, kv_len, _ = key.shape
    grid = (blocks_of(kv_len, tile.keys) * kv_heads * batch,)
    _backward_key[grid](
        *call.arguments(tile), *map(Matrix.of, grads), seen_by(call.scores, tile), kv_heads, **call.constants(tile)
    )
    return grads[0], grads[1]


@triton.jit
def _prepare(output, grad_output, scores, lse, grad_lse, shift, row_dot, ROWS: tl.constexpr, BLOCK_V: tl.constexpr):
    """What the other kernels read of each row, 0 products beyond the last."""
    block, head, batch = program_place(scores.length, scores.heads, scores.batches, ROWS)
    rows, number = block * ROWS + tl.arange(0, ROWS), batch * scores.heads + head
    outputs = chosen_rows(output, batch, head, rows, BLOCK_V).to(tl.float32)
    gradients = chosen_rows(grad_output, batch, head, rows, BLOCK_V).to(tl.float32)
    own = tl.load(grad_lse + number * scores.q_len + rows, rows < scores.q_len, other=0.0)
    tl.store(shift + number * scores.length + rows, log_sum_exp(scores, lse, number, rows))
    tl.store(row_dot + number * scores.length + rows, tl.sum(outputs * gradients, 1) - own)


@triton.jit
def _backward_query(
    query,
    grad_output,
    key,
    value,
    scores,
    dropout,
    shift,
    row_dot,
    scale,
    grad_query,
    felt,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    RANGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    start, rows, head, batch = own_rows(scores, BLOCK_Q)
    own = brought(query, grad_output, scores, shift, row_dot, batch, head, start, BLOCK_Q, BLOCK_D, BLOCK_V)
    fixed = (own, key, value, scores, dropout, batch, head, rows)
    state = (tl.zeros([BLOCK_Q, BLOCK_D], dtype=tl.float32), tl.zeros([BLOCK_Q], dtype=tl.float32))
    state = over_keys(_take_keys, state, fixed, scores, batch, rows, 0, scores.kv_len, BLOCK_K, RANGES, PRECISION)
    store_rows(grad_query, batch, head, rows, state[0] * scale)
    if felt is not None:
        tl.store(felt + (batch * scores.heads + head) * scores.q_len + rows, state[1], rows < scores.q_len)


@triton.jit
def brought(
    query, grad_output, scores, shift, row_dot, batch, head, start,
    BLOCK_Q: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """What a block of queries brings: itself, the gradient of its output, log-sum-exp in base 2 and row_dot."""
    rows = start + tl.arange(0, BLOCK_Q)
    return (
        rows_at(query, batch, head, start, BLOCK_Q, BLOCK_D),
        rows_at(grad_output, batch, head, start, BLOCK_Q, BLOCK_V),
        shift_at(shift, scores, batch, head, rows),
        shift_at(row_dot, scores, batch, head, rows),
    )


@triton.jit
def _take_keys(state, fixed, place, first, last, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr):
    """Add what the keys from `place` on give to the gradient of a block of queries, and of its ALiBi slope."""
    summed, feeling = state
    own, key, value, scores, dropout, batch, head, rows = fixed
    query, grad, shift, dots = own
    keys = place + tl.arange(0, BLOCK_K)
    key_head = head // scores.group
    key_tile = rows_at(key, batch, key_head, place, BLOCK_K, query.shape[1])
    value_tile = rows_at(value, batch, key_head, place, BLOCK_K, grad.shape[1])
    products, grad_weights = product(query, key_tile, PRECISION), product(grad, value_tile, PRECISION)
    _, grad_scores, slope = cell_gradients(
        products, grad_weights, shift[:, None], dots[:, None], scores, dropout, batch, head, rows[:, None],
        keys[None, :], first[:, None], last[:, None], MASKED)  # fmt: skip
    if scores.slopes is not None:
        feeling += tl.sum(grad_scores * distance(origin(scores, batch), rows[:, None], keys[None, :]), 1)
    return dot((grad_scores * slope).to(key_tile.dtype), key_tile, summed, PRECISION), feeling


@triton.jit
def cell_gradients(
    products, grad_weights, shift, dots, scores, dropout, batch, head, rows, keys, first, last, MASKED: tl.constexpr
):
    """Of each cell of a tile, either way round: the weight as it was used, the gradient of the score, and d softcap."""
    logits = scored(products, scores, batch, head, rows, keys, first, last, MASKED)
    weights = tl.exp2(logits * unit(scores) - shift)
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
    query,
    grad_output,
    key,
    value,
    scores,
    dropout,
    shift,
    row_dot,
    scale,
    grad_key,
    grad_value,
    seen,
    kv_heads,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    RANGES: tl.constexpr,
    PRECISION: tl.constexpr,
    num_stages: tl.constexpr,
):
    block, key_head, batch = program_place(scores.kv_len, kv_heads, scores.batches, BLOCK_K)
    start = block * BLOCK_K
    keys = start + tl.arange(0, BLOCK_K)
    key_tile = rows_at(key, batch, key_head, start, BLOCK_K, BLOCK_D)
    value_tile = rows_at(value, batch, key_head, start, BLOCK_K, BLOCK_V)
    state = (tl.zeros([BLOCK_K, BLOCK_D], dtype=tl.float32), tl.zeros([BLOCK_K, BLOCK_V], dtype=tl.float32))
    for member in range(scores.group):
        head = key_head * scores.group + member
        fixed = (key_tile, value_tile, query, grad_output, scores, dropout, shift, row_dot, batch, head, keys)
        state = over_queries(
            _take_queries, state, fixed, scores, seen, batch, block, BLOCK_Q, BLOCK_K, RANGES, PRECISION, num_stages
        )
    store_rows(grad_key, batch, key_head, keys, state[0] * scale)
    store_rows(grad_value, batch, key_head, keys, state[1])


@triton.jit
def _take_queries(state, fixed, number, start, BLOCK_Q: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr):
    """Add what queries from `start` on give to the gradients of a block of keys and values."""
    summed_key, summed_value = state
    key, value, query, grad_output, scores, dropout, shift, row_dot, batch, head, keys = fixed
    rows = start + tl.arange(0, BLOCK_Q)
    query_tile, grad, shifts, dots = brought(
        query, grad_output, scores, shift, row_dot, batch, head, start, BLOCK_Q, key.shape[1], value.shape[1]
    )
    first, last = range_ends(scores, number, batch, rows)
    # transposed, [BLOCK_K, BLOCK_Q], so that the second products need no turning
    products, grad_weights = product(key, query_tile, PRECISION), product(value, grad, PRECISION)
    used, grad_scores, slope = cell_gradients(
        products, grad_weights, shifts[None, :], dots[None, :], scores, dropout, batch, head, rows[None, :],
        keys[:, None], first[None, :], last[None, :], MASKED)  # fmt: skip
    summed_value = dot(used.to(grad.dtype), grad, summed_value, PRECISION)
    summed_key = dot((grad_scores * slope).to(query_tile.dtype), query_tile, summed_key, PRECISION)
    return summed_key, summed_value
