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

from clearhead.ops._custom_op import Gradients, Results
from clearhead.ops.call import AttentionCall
from clearhead.ops.triton.block_ranges import transpose_block_ranges
from clearhead.ops.triton.config import (
    Kernel,
    TileConfig,
    block_count,
    constants,
    matmul_precision,
    padded_width,
    tile_for,
)
from clearhead.ops.triton.dropout import DropoutParams, dropout_multiplier
from clearhead.ops.triton.logits import (
    LogitParams,
    StridedTensor,
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

PREPARED_ROWS = 64  # of one program that prepares them


def backward(call: AttentionCall, results: Results) -> tuple[BackwardInputs, Gradients]:
    """All gradients but that of a tensor bias, and what it takes to have that too."""
    backward_inputs = BackwardInputs.from_call(call, results)
    grad_query, slope_grad = grad_of_query(backward_inputs)
    grad_key, grad_value = grad_of_key(backward_inputs)
    grad_bias, grad_slopes, grad_sinks = (
        backward_inputs.delta.new_empty(0) for _ in range(3)
    )  # results must not be one tensor
    if slope_grad is not None and call.slopes is not None:
        grad_slopes = -slope_grad.sum(dim=(0, 2)).to(call.slopes.dtype)
    if call.sinks is not None:
        share = torch.exp(call.sinks.float()[:, None] - results.lse)  # what the sink takes: [batch, heads, q_len]
        grad_sinks = -(share * backward_inputs.delta[..., : share.shape[2]]).sum(dim=(0, 2)).to(call.sinks.dtype)
    return backward_inputs, Gradients(grad_query, grad_key, grad_value, grad_bias, grad_slopes, grad_sinks)


@dataclass(frozen=True, eq=False)
class BackwardInputs:
    """What the kernels of a backward pass read."""

    call: AttentionCall
    scores: LogitParams
    grad_output: Tensor
    shift: Tensor  # log-sum-exp in base 2, [batch, heads, scores.length]
    delta: Tensor  # Σⱼ A·dA of each row; the gradient of lse enters with the opposite sign

    @classmethod
    def from_call(cls, call: AttentionCall, results: Results) -> BackwardInputs:
        grad_output = results.grad_output.to(call.query.dtype)
        scores = LogitParams.from_call(call)
        batch, heads, _ = results.lse.shape
        shift, delta = (results.lse.new_empty((batch, heads, scores.length)) for _ in range(2))
        _prepare[(scores.length // PREPARED_ROWS * heads * batch,)](
            StridedTensor.from_tensor(results.output),
            StridedTensor.from_tensor(grad_output),
            scores,
            results.lse.contiguous(),
            results.grad_lse.float().contiguous(),
            shift,
            delta,
            PREPARED_ROWS,
            padded_width(grad_output.shape[3]),
        )
        return cls(call, scores, grad_output, shift, delta)

    @property
    def value(self) -> Tensor:
        assert self.call.value is not None
        return self.call.value

    def tile(self, kernel: Kernel) -> TileConfig:
        query, value = self.call.query, self.value
        return tile_for(kernel, query.dtype, max(query.shape[3], value.shape[3]), query.shape[2])

    def arguments(self, tile: TileConfig) -> tuple:
        call = self.call
        return (
            rows_of(call.query, tile.queries),
            rows_of(self.grad_output, tile.queries),
            rows_of(call.key, tile.keys),
            rows_of(self.value, tile.keys),
            self.scores,
            DropoutParams.from_call(call),
            self.shift,
            self.delta,
            call.scale,
        )

    def constants(self, tile: TileConfig) -> dict[str, int | str]:
        own = {"BLOCK_V": padded_width(self.value.shape[3]), "PRECISION": matmul_precision(self.call.query.dtype)}
        return constants(self.call, tile) | own


def grad_of_query(backward_inputs: BackwardInputs, tile: TileConfig | None = None) -> tuple[Tensor, Tensor | None]:
    """The gradient of queries; with ALiBi, also how much each row feels of its slope."""
    query, tile = backward_inputs.call.query, tile or backward_inputs.tile("backward_query")
    grad = torch.empty_like(query, memory_format=torch.contiguous_format)
    slope_grad = None if backward_inputs.call.slopes is None else backward_inputs.delta.new_empty(query.shape[:3])
    batch, heads, q_len, _ = query.shape
    grid = (block_count(q_len, tile.queries) * heads * batch,)
    _backward_query[grid](
        *backward_inputs.arguments(tile), StridedTensor.from_tensor(grad), slope_grad, **backward_inputs.constants(tile)
    )
    return grad, slope_grad


def grad_of_key(backward_inputs: BackwardInputs, tile: TileConfig | None = None) -> tuple[Tensor, Tensor]:
    """The gradients of keys and values."""
    key, tile = backward_inputs.call.key, tile or backward_inputs.tile("backward_key")
    grads = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (key, backward_inputs.value)]
    batch, kv_heads, kv_len, _ = key.shape
    grid = (block_count(kv_len, tile.keys) * kv_heads * batch,)
    _backward_key[grid](
        *backward_inputs.arguments(tile),
        *map(StridedTensor.from_tensor, grads),
        transpose_block_ranges(backward_inputs.scores, tile),
        kv_heads,
        **backward_inputs.constants(tile),
    )
    return grads[0], grads[1]


@triton.jit
def _prepare(output, grad_output, scores, lse, grad_lse, shift, delta, ROWS: tl.constexpr, BLOCK_V: tl.constexpr):
    """What the other kernels read of each row, 0 products beyond the last."""
    block, head, batch = program_place(scores.length, scores.heads, scores.batches, ROWS)
    rows, number = block * ROWS + tl.arange(0, ROWS), batch * scores.heads + head
    outputs = chosen_rows(output, batch, head, rows, BLOCK_V).to(tl.float32)
    gradients = chosen_rows(grad_output, batch, head, rows, BLOCK_V).to(tl.float32)
    own = tl.load(grad_lse + number * scores.q_len + rows, rows < scores.q_len, other=0.0)
    tl.store(shift + number * scores.length + rows, log_sum_exp(scores, lse, number, rows))
    tl.store(delta + number * scores.length + rows, tl.sum(outputs * gradients, 1) - own)


@triton.jit
def _backward_query(
    query,
    grad_output,
    key,
    value,
    scores,
    dropout,
    shift,
    delta,
    scale,
    grad_query,
    slope_grad,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    RANGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    start, rows, head, batch = own_rows(scores, BLOCK_Q)
    own = load_query_block(query, grad_output, scores, shift, delta, batch, head, start, BLOCK_Q, BLOCK_D, BLOCK_V)
    fixed = (own, key, value, scores, dropout, batch, head, rows)
    state = (tl.zeros([BLOCK_Q, BLOCK_D], dtype=tl.float32), tl.zeros([BLOCK_Q], dtype=tl.float32))
    state = over_keys(_take_keys, state, fixed, scores, batch, rows, 0, scores.kv_len, BLOCK_K, RANGES, PRECISION)
    store_rows(grad_query, batch, head, rows, state[0] * scale)
    if slope_grad is not None:
        tl.store(slope_grad + (batch * scores.heads + head) * scores.q_len + rows, state[1], rows < scores.q_len)


@triton.jit
def load_query_block(
    query, grad_output, scores, shift, delta, batch, head, start,
    BLOCK_Q: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """What a block of queries brings: itself, the gradient of its output, log-sum-exp in base 2 and row_dot."""
    rows = start + tl.arange(0, BLOCK_Q)
    return (
        rows_at(query, batch, head, start, BLOCK_Q, BLOCK_D),
        rows_at(grad_output, batch, head, start, BLOCK_Q, BLOCK_V),
        shift_at(shift, scores, batch, head, rows),
        shift_at(delta, scores, batch, head, rows),
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
        survivors = dropout_multiplier(dropout, batch, head, rows, keys, scores.heads, scores.q_len)
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
    delta,
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
        fixed = (key_tile, value_tile, query, grad_output, scores, dropout, shift, delta, batch, head, keys)
        state = over_queries(
            _take_queries, state, fixed, scores, seen, batch, block, BLOCK_Q, BLOCK_K, RANGES, PRECISION, num_stages
        )
    store_rows(grad_key, batch, key_head, keys, state[0] * scale)
    store_rows(grad_value, batch, key_head, keys, state[1])


@triton.jit
def _take_queries(state, fixed, number, start, BLOCK_Q: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr):
    """Add what queries from `start` on give to the gradients of a block of keys and values."""
    summed_key, summed_value = state
    key, value, query, grad_output, scores, dropout, shift, delta, batch, head, keys = fixed
    rows = start + tl.arange(0, BLOCK_Q)
    query_tile, grad, shifts, dots = load_query_block(
        query, grad_output, scores, shift, delta, batch, head, start, BLOCK_Q, key.shape[1], value.shape[1]
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
