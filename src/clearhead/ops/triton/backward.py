"""Backward pass in Triton. Each sum is computed by one program, so results are bitwise reproducible.

The gradient of queries loops over keys, as the forward pass does. The gradients of keys and values loop over the query
blocks that may attend to a key block, and over all query heads that read its key head.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
import triton
import triton.language as tl
from torch import Tensor

from clearhead.ops._custom_op import Gradients, Results
from clearhead.ops.call import AttentionCall
from clearhead.ops.triton.block_ranges import transpose_block_ranges
from clearhead.ops.triton.config import TileConfig, block_count, constants, matmul_precision, padded_width
from clearhead.ops.triton.dropout import DropoutParams, dropout_multiplier
from clearhead.ops.triton.logits import (
    LogitParams,
    StridedTensor,
    deferred_scale,
    distance,
    dot,
    dot_transposed,
    finish_logits,
    gather_rows,
    key_length,
    load_lse,
    load_row_values,
    load_rows,
    query_length,
    query_offset,
    row_indices,
    row_reader,
    store_rows,
    tanh,
)
from clearhead.ops.triton.schedule import loop_over_keys, loop_over_queries, program_block, query_block, range_ends
from clearhead.ops.triton.tiles import Kernel, launch_with_tile

T = TypeVar("T")
PREPARED_ROWS = 64  # rows per program of `_prepare`


def backward(call: AttentionCall, results: Results) -> tuple[BackwardInputs, Gradients]:
    """Return the inputs of the backward kernels, and all gradients except that of a tensor bias."""
    backward_inputs = BackwardInputs.from_call(call, results)
    grad_query, slope_grad = grad_of_query(backward_inputs)
    grad_key, grad_value = grad_of_key(backward_inputs)
    grad_bias, grad_slopes, grad_sinks = (
        backward_inputs.delta.new_empty(0) for _ in range(3)
    )  # outputs of a custom op must not alias
    if slope_grad is not None and call.slopes is not None:
        grad_slopes = -slope_grad.sum(dim=(0, 2)).to(call.slopes.dtype)
    if call.sinks is not None:
        sink_weights = torch.exp(call.sinks.float()[:, None] - results.lse)  # [batch, heads, q_len]
        delta = backward_inputs.delta[..., : sink_weights.shape[2]]
        grad_sinks = -(sink_weights * delta).sum(dim=(0, 2)).to(call.sinks.dtype)
    return backward_inputs, Gradients(grad_query, grad_key, grad_value, grad_bias, grad_slopes, grad_sinks)


@dataclass(frozen=True, eq=False)
class BackwardInputs:
    """Inputs of the backward kernels."""

    call: AttentionCall
    logit_params: LogitParams
    grad_output: Tensor
    shift: Tensor  # log-sum-exp in base 2, [batch, heads, logit_params.length]
    delta: Tensor  # Σⱼ A·dA of each row; the gradient of lse enters with the opposite sign

    @classmethod
    def from_call(cls, call: AttentionCall, results: Results) -> BackwardInputs:
        grad_output = results.grad_output.to(call.query.dtype)
        logit_params = LogitParams.from_call(call)
        batch, heads, _ = results.lse.shape
        shift, delta = (results.lse.new_empty((batch, heads, logit_params.length)) for _ in range(2))
        _prepare[(logit_params.length // PREPARED_ROWS * heads * batch,)](
            StridedTensor.from_tensor(results.output),
            StridedTensor.from_tensor(grad_output),
            logit_params,
            results.lse.contiguous(),
            results.grad_lse.float().contiguous(),
            shift,
            delta,
            PREPARED_ROWS,
            padded_width(grad_output.shape[3]),
        )
        return cls(call, logit_params, grad_output, shift, delta)

    @property
    def value(self) -> Tensor:
        assert self.call.value is not None
        return self.call.value

    def launch(self, kernel: Kernel, launch: Callable[[TileConfig], T], tile: TileConfig | None = None) -> T:
        """Launch a kernel with the tile that fits, as `launch_with_tile`."""
        return launch_with_tile(kernel, self.call, self.call.query.shape[2], launch, tile=tile)

    def arguments(self, tile: TileConfig) -> tuple:
        call = self.call
        return (
            row_reader(call.query, tile.queries),
            row_reader(self.grad_output, tile.queries),
            row_reader(call.key, tile.keys),
            row_reader(self.value, tile.keys),
            self.logit_params,
            DropoutParams.from_call(call),
            self.shift,
            self.delta,
            call.scale,
        )

    def constants(self, tile: TileConfig) -> dict[str, int | str]:
        extra = {"BLOCK_V": padded_width(self.value.shape[3]), "PRECISION": matmul_precision(self.call.query.dtype)}
        return constants(self.call, tile) | extra


def grad_of_query(backward_inputs: BackwardInputs, tile: TileConfig | None = None) -> tuple[Tensor, Tensor | None]:
    """Return the gradient of queries and, with ALiBi, the contribution of each row to the gradient of its slope."""
    query = backward_inputs.call.query
    grad = torch.empty_like(query, memory_format=torch.contiguous_format)
    slope_grad = None if backward_inputs.call.slopes is None else backward_inputs.delta.new_empty(query.shape[:3])
    batch, heads, q_len, _ = query.shape

    def launch(tile: TileConfig) -> None:
        _backward_query[(block_count(q_len, tile.queries) * heads * batch,)](
            *backward_inputs.arguments(tile),
            StridedTensor.from_tensor(grad),
            slope_grad,
            **backward_inputs.constants(tile),
        )

    backward_inputs.launch("backward_query", launch, tile)
    return grad, slope_grad


def grad_of_key(backward_inputs: BackwardInputs, tile: TileConfig | None = None) -> tuple[Tensor, Tensor]:
    """Return the gradients of keys and values."""
    key, value = backward_inputs.call.key, backward_inputs.value
    grad_key, grad_value = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (key, value))
    batch, kv_heads, kv_len, _ = key.shape

    def launch(tile: TileConfig) -> None:
        _backward_key[(block_count(kv_len, tile.keys) * kv_heads * batch,)](
            *backward_inputs.arguments(tile),
            StridedTensor.from_tensor(grad_key),
            StridedTensor.from_tensor(grad_value),
            transpose_block_ranges(backward_inputs.call, backward_inputs.logit_params, tile),
            kv_heads,
            **backward_inputs.constants(tile),
        )

    backward_inputs.launch("backward_key", launch, tile)
    return grad_key, grad_value


@triton.jit
def _prepare(output, grad_output, logit_params, lse, grad_lse, shift, delta, ROWS: tl.constexpr, BLOCK_V: tl.constexpr):
    """Store log-sum-exp in base 2 and delta = rowsum(dO ∘ O) − d lse of each row; delta is 0 beyond the last."""
    block, head, batch = program_block(logit_params.length, logit_params.heads, logit_params.batches, ROWS)
    rows = block * ROWS + tl.arange(0, ROWS)
    outputs = gather_rows(output, batch, head, rows, BLOCK_V).to(tl.float32)
    gradients = gather_rows(grad_output, batch, head, rows, BLOCK_V).to(tl.float32)
    pointers = grad_lse + row_indices(logit_params, batch, head, rows)
    grad_lse_rows = tl.load(pointers, rows < query_length(logit_params), other=0.0)
    prepared = (batch * logit_params.heads + head) * logit_params.length + rows
    tl.store(shift + prepared, load_lse(logit_params, lse, batch, head, rows))
    tl.store(delta + prepared, tl.sum(outputs * gradients, 1) - grad_lse_rows)


@triton.jit
def _backward_query(
    query,
    grad_output,
    key,
    value,
    logit_params,
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
    start, rows, head, batch = query_block(logit_params, BLOCK_Q)
    query_tile = load_query_block(
        query, grad_output, logit_params, shift, delta, batch, head, start, BLOCK_Q, BLOCK_D, BLOCK_V
    )
    fixed = (query_tile, key, value, logit_params, dropout, batch, head, rows)
    state = (tl.zeros([BLOCK_Q, BLOCK_D], dtype=tl.float32), tl.zeros([BLOCK_Q], dtype=tl.float32))
    kv_len = key_length(logit_params)
    state = loop_over_keys(
        _add_key_tile, state, fixed, logit_params, batch, rows, 0, kv_len, BLOCK_K, RANGES, PRECISION
    )
    store_rows(grad_query, batch, head, rows, state[0] * scale)
    if slope_grad is not None:
        pointers = slope_grad + row_indices(logit_params, batch, head, rows)
        tl.store(pointers, state[1], rows < query_length(logit_params))


@triton.jit
def load_query_block(
    query, grad_output, logit_params, shift, delta, batch, head, start,
    BLOCK_Q: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Load a query block: queries, the gradient of their output, log-sum-exp in base 2 and delta."""
    rows = start + tl.arange(0, BLOCK_Q)
    return (
        load_rows(query, batch, head, start, BLOCK_Q, BLOCK_D),
        load_rows(grad_output, batch, head, start, BLOCK_Q, BLOCK_V),
        load_row_values(shift, logit_params, batch, head, rows),
        load_row_values(delta, logit_params, batch, head, rows),
    )


@triton.jit
def _add_key_tile(
    state, fixed, key_start, first, last, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr
):
    """Add the contribution of the key tile at `key_start` to the gradients of a query block and its ALiBi slope."""
    grad_query, slope_sum = state
    query_tile, key, value, logit_params, dropout, batch, head, rows = fixed
    query, grad, shift, delta = query_tile
    keys = key_start + tl.arange(0, BLOCK_K)
    key_head = head // logit_params.group
    key_tile = load_rows(key, batch, key_head, key_start, BLOCK_K, query.shape[1])
    value_tile = load_rows(value, batch, key_head, key_start, BLOCK_K, grad.shape[1])
    products, grad_weights = dot_transposed(query, key_tile, PRECISION), dot_transposed(grad, value_tile, PRECISION)
    _, grad_scores, slope = cell_gradients(
        products, grad_weights, shift[:, None], delta[:, None], logit_params, dropout, batch, head, rows[:, None],
        keys[None, :], first[:, None], last[:, None], MASKED)  # fmt: skip
    if logit_params.slopes is not None:
        slope_sum += tl.sum(grad_scores * distance(query_offset(logit_params, batch), rows[:, None], keys[None, :]), 1)
    return dot((grad_scores * slope).to(key_tile.dtype), key_tile, grad_query, PRECISION), slope_sum


@triton.jit
def cell_gradients(
    products,
    grad_weights,
    shift,
    delta,
    logit_params,
    dropout,
    batch,
    head,
    rows,
    keys,
    first,
    last,
    MASKED: tl.constexpr,
):
    """Return for each cell of a tile the weight after dropout, the gradient of the score and the slope of softcap.

    The tile may have either orientation.
    """
    logits = finish_logits(products, logit_params, batch, head, rows, keys, first, last, MASKED)
    weights = tl.exp2(logits * deferred_scale(logit_params) - shift)
    used = weights
    if dropout is not None:
        multiplier = dropout_multiplier(dropout, row_indices(logit_params, batch, head, rows), keys)
        used = weights * multiplier
        grad_weights = grad_weights * multiplier
    slope = 1.0
    if logit_params.softcap is not None:
        capped = tanh(products * logit_params.scale)
        slope = 1 - capped * capped
    return used, weights * (grad_weights - delta), slope


@triton.jit
def _backward_key(
    query,
    grad_output,
    key,
    value,
    logit_params,
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
    block, key_head, batch = program_block(key_length(logit_params), kv_heads, logit_params.batches, BLOCK_K)
    start = block * BLOCK_K
    keys = start + tl.arange(0, BLOCK_K)
    key_tile = load_rows(key, batch, key_head, start, BLOCK_K, BLOCK_D)
    value_tile = load_rows(value, batch, key_head, start, BLOCK_K, BLOCK_V)
    state = (tl.zeros([BLOCK_K, BLOCK_D], dtype=tl.float32), tl.zeros([BLOCK_K, BLOCK_V], dtype=tl.float32))
    for member in range(logit_params.group):
        head = key_head * logit_params.group + member
        fixed = (key_tile, value_tile, query, grad_output, logit_params, dropout, shift, delta, batch, head, keys)
        state = loop_over_queries(
            _add_query_block,
            state,
            fixed,
            logit_params,
            seen,
            batch,
            block,
            BLOCK_Q,
            BLOCK_K,
            RANGES,
            PRECISION,
            num_stages,
        )
    store_rows(grad_key, batch, key_head, keys, state[0] * scale)
    store_rows(grad_value, batch, key_head, keys, state[1])


@triton.jit
def _add_query_block(
    state, fixed, range_index, start, BLOCK_Q: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr
):
    """Add the contribution of the query block at `start` to the gradients of a key block and its values."""
    grad_key, grad_value = state
    key, value, query, grad_output, logit_params, dropout, shift, delta, batch, head, keys = fixed
    rows = start + tl.arange(0, BLOCK_Q)
    query_tile, grad, shifts, delta_rows = load_query_block(
        query, grad_output, logit_params, shift, delta, batch, head, start, BLOCK_Q, key.shape[1], value.shape[1]
    )
    first, last = range_ends(logit_params, range_index, batch, rows)
    # transposed, [BLOCK_K, BLOCK_Q], so that the products below need no transpose
    products, grad_weights = dot_transposed(key, query_tile, PRECISION), dot_transposed(value, grad, PRECISION)
    used, grad_scores, slope = cell_gradients(
        products, grad_weights, shifts[None, :], delta_rows[None, :], logit_params, dropout, batch, head, rows[None, :],
        keys[:, None], first[None, :], last[None, :], MASKED)  # fmt: skip
    grad_value = dot(used.to(grad.dtype), grad, grad_value, PRECISION)
    grad_key = dot((grad_scores * slope).to(query_tile.dtype), query_tile, grad_key, PRECISION)
    return grad_key, grad_value
