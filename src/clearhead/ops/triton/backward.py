"""Backward pass in Triton. Each sum is computed by one program, so results are bitwise reproducible.

The gradient of queries loops over keys, as the forward pass does. The gradients of keys and values loop over the query
blocks that may attend to a key block, and over all query heads that read its key head.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from clearhead.ops._custom_op import Results
from clearhead.ops.call import AttentionCall
from clearhead.ops.gradients import Gradients
from clearhead.ops.triton.block_ranges import transpose_block_ranges
from clearhead.ops.triton.cell_gradients import NO_TERMS, CellTerms, cell_gradients
from clearhead.ops.triton.config import TileConfig, block_count, value_constants
from clearhead.ops.triton.dropout import DropoutParams
from clearhead.ops.triton.launch import Side, launch, layout_of_call
from clearhead.ops.triton.logits import (
    BEYOND_LAST_ROW,
    PREPARED_ROWS_MULTIPLE,
    LogitParams,
    distance,
    dot,
    dot_transposed,
    gather_rows,
    key_length,
    load_lse,
    load_row_values,
    load_rows,
    query_length,
    query_offset,
    row_indices,
    store_rows,
)
from clearhead.ops.triton.schedule import loop_over_keys, loop_over_queries, program_block, query_block, range_ends

ROWS: tuple[Side, ...] = ("queries", "queries", "keys", "keys")  # of `BackwardInputs.matrices`


def backward(call: AttentionCall, results: Results, terms: CellTerms = NO_TERMS) -> tuple[BackwardInputs, Gradients]:
    """Return the inputs of the backward kernels, and all gradients except that of a tensor bias."""
    backward_inputs = BackwardInputs.from_call(call, results, terms)
    grad_query, slope_grad = grad_of_query(backward_inputs)
    grad_key, grad_value = grad_of_key(backward_inputs)
    grad_slopes = grad_sinks = None
    if slope_grad is not None and call.slopes is not None:
        grad_slopes = -slope_grad.sum(dim=(0, 2)).to(call.slopes.dtype)
    if call.sinks is not None:
        sink_weights = torch.exp(call.sinks.float()[:, None] - results.lse)  # [batch, heads, q_len]
        delta = backward_inputs.row_values[1, ..., : sink_weights.shape[2]]
        grad_sinks = -(sink_weights * delta).sum(dim=(0, 2)).to(call.sinks.dtype)
    return backward_inputs, Gradients(grad_query, grad_key, grad_value, None, grad_slopes, grad_sinks)


class BackwardInputs(NamedTuple):
    """Inputs of the backward kernels. That of the query's gradient computes the row values for the others.

    The row values are log-sum-exp in base 2, and delta = Σⱼ A·dA of each row, which the gradient of log-sum-exp enters
    with the opposite sign. They are one tensor, because an allocation takes microseconds.
    """

    call: AttentionCall
    results: Results
    layout: tuple[Hashable, ...]
    logit_params: LogitParams
    dropout: DropoutParams | None
    terms: CellTerms
    row_values: Tensor  # [2, batch, heads, logit_params.length]

    @classmethod
    def from_call(cls, call: AttentionCall, results: Results, terms: CellTerms = NO_TERMS) -> BackwardInputs:
        output, lse, grad_output, grad_lse = results
        grad_lse = None if grad_lse is None else grad_lse.float().contiguous()
        results = Results(output, lse.contiguous(), grad_output.to(call.query.dtype), grad_lse)
        layout = layout_of_call(call, *results, *terms)
        logit_params = LogitParams.from_call(call)
        batch, heads, _ = results.lse.shape
        row_values = results.lse.new_empty((2, batch, heads, logit_params.length))
        return cls(call, results, layout, logit_params, DropoutParams.from_call(call), terms, row_values)

    @property
    def value(self) -> Tensor:
        assert self.call.value is not None
        return self.call.value

    @property
    def matrices(self) -> tuple[Tensor, ...]:
        return self.call.query, self.results.grad_output, self.call.key, self.value

    @property
    def arguments(self) -> tuple:
        return self.logit_params, self.dropout, self.terms, self.row_values

    def constants(self, tile: TileConfig) -> dict[str, int | str]:
        return value_constants(self.call, tile)


def grad_of_query(backward_inputs: BackwardInputs, tile: TileConfig | None = None) -> tuple[Tensor, Tensor | None]:
    """Return the gradient of queries and, with ALiBi, the contribution of each row to the gradient of its slope."""
    call, results = backward_inputs.call, backward_inputs.results
    query = call.query
    grad = torch.empty_like(query, memory_format=torch.contiguous_format)
    slope_grad = None if call.slopes is None else results.lse.new_empty(query.shape[:3])
    batch, heads, q_len, _ = query.shape

    def arguments(tile: TileConfig) -> tuple[int, tuple]:
        return block_count(q_len, tile.queries) * heads * batch, (
            *backward_inputs.arguments,
            call.scale,
            results.lse,
            results.grad_lse,
            slope_grad,
        )

    launch(
        "backward_query",
        _backward_query,
        call,
        backward_inputs.layout,
        arguments,
        backward_inputs.constants,
        matrices=(*backward_inputs.matrices, results.output, grad),
        rows=ROWS,
        tile=tile,
    )
    return grad, slope_grad


def grad_of_key(backward_inputs: BackwardInputs, tile: TileConfig | None = None) -> tuple[Tensor, Tensor]:
    """Return the gradients of keys and values. `grad_of_query` comes first, because it computes `delta`."""
    call, value = backward_inputs.call, backward_inputs.value
    grad_key, grad_value = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (call.key, value))
    batch, kv_heads, kv_len, _ = call.key.shape

    def arguments(tile: TileConfig) -> tuple[int, tuple]:
        return block_count(kv_len, tile.keys) * kv_heads * batch, (
            *backward_inputs.arguments,
            call.scale,
            transpose_block_ranges(call, backward_inputs.logit_params, tile),
            kv_heads,
        )

    launch(
        "backward_key",
        _backward_key,
        call,
        backward_inputs.layout,
        arguments,
        backward_inputs.constants,
        matrices=(*backward_inputs.matrices, grad_key, grad_value),
        rows=ROWS,
        tile=tile,
    )
    return grad_key, grad_value


@triton.jit
def _backward_query(
    query,
    grad_output,
    key,
    value,
    output,
    grad_query,
    logit_params,
    dropout,
    terms,
    row_values,
    scale,
    lse,
    grad_lse,
    slope_grad,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    RANGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    start, rows, head, batch = query_block(logit_params, BLOCK_Q)
    gradients = load_rows(grad_output, batch, head, start, BLOCK_Q, BLOCK_V)
    row_shift, row_delta = _prepare_rows(
        output, gradients, lse, grad_lse, row_values, logit_params, batch, head, start, BLOCK_Q, BLOCK_V
    )
    query_tile = (load_rows(query, batch, head, start, BLOCK_Q, BLOCK_D), gradients, row_shift, row_delta)
    fixed = (query_tile, key, value, logit_params, dropout, terms, batch, head, rows)
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
def _prepare_rows(
    output, gradients, lse, grad_lse, row_values, logit_params, batch, head, start,
    BLOCK_Q: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Return log-sum-exp in base 2 and delta = rowsum(dO ∘ O) − d lse of a query block; store them for other kernels.

    The last block also stores values for the rows beyond it, which other kernels may load: delta is 0 there.
    """
    rows = start + tl.arange(0, BLOCK_Q)
    shift, delta = row_values, delta_pointer(row_values, logit_params)
    outputs = gather_rows(output, batch, head, rows, BLOCK_V).to(tl.float32)
    row_delta = tl.sum(outputs * gradients.to(tl.float32), 1)
    if grad_lse is not None:
        pointers = grad_lse + row_indices(logit_params, batch, head, rows)
        row_delta -= tl.load(pointers, rows < query_length(logit_params), other=0.0)
    row_shift = load_lse(logit_params, lse, batch, head, rows)
    first = (batch * logit_params.heads + head) * logit_params.length
    inside = rows < logit_params.length
    tl.store(shift + first + rows, row_shift, inside)
    tl.store(delta + first + rows, row_delta, inside)
    if start + BLOCK_Q >= query_length(logit_params):
        beyond = start + BLOCK_Q + tl.arange(0, PREPARED_ROWS_MULTIPLE)
        exists = beyond < logit_params.length
        tl.store(shift + first + beyond, tl.full([PREPARED_ROWS_MULTIPLE], BEYOND_LAST_ROW, tl.float32), exists)
        tl.store(delta + first + beyond, tl.zeros([PREPARED_ROWS_MULTIPLE], tl.float32), exists)
    return row_shift, row_delta


@triton.jit
def delta_pointer(row_values, logit_params):
    """Return the pointer to the deltas, which follow the log-sum-exps; int64, because the offset may exceed 2³¹."""
    return row_values + tl.cast(logit_params.batches * logit_params.heads, tl.int64) * logit_params.length


@triton.jit
def load_query_block(
    query, grad_output, logit_params, row_values, batch, head, start,
    BLOCK_Q: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Load a query block: queries, the gradient of their output, log-sum-exp in base 2 and delta."""
    rows = start + tl.arange(0, BLOCK_Q)
    return (
        load_rows(query, batch, head, start, BLOCK_Q, BLOCK_D),
        load_rows(grad_output, batch, head, start, BLOCK_Q, BLOCK_V),
        load_row_values(row_values, logit_params, batch, head, rows),
        load_row_values(delta_pointer(row_values, logit_params), logit_params, batch, head, rows),
    )


@triton.jit
def _add_key_tile(
    state, fixed, key_start, first, last, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr
):
    """Add the contribution of the key tile at `key_start` to the gradients of a query block and its ALiBi slope."""
    grad_query, slope_sum = state
    query_tile, key, value, logit_params, dropout, terms, batch, head, rows = fixed
    query, grad, shift, delta = query_tile
    keys = key_start + tl.arange(0, BLOCK_K)
    key_head = head // logit_params.group
    key_tile = load_rows(key, batch, key_head, key_start, BLOCK_K, query.shape[1])
    value_tile = load_rows(value, batch, key_head, key_start, BLOCK_K, grad.shape[1])
    products, grad_weights = dot_transposed(query, key_tile, PRECISION), dot_transposed(grad, value_tile, PRECISION)
    _, grad_scores, slope = cell_gradients(
        products, grad_weights, shift[:, None], delta[:, None], logit_params, dropout, terms, batch, head,
        rows[:, None], keys[None, :], first[:, None], last[:, None], MASKED)  # fmt: skip
    if logit_params.slopes is not None:
        slope_sum += tl.sum(grad_scores * distance(query_offset(logit_params, batch), rows[:, None], keys[None, :]), 1)
    return dot((grad_scores * slope).to(key_tile.dtype), key_tile, grad_query, PRECISION), slope_sum


@triton.jit
def _backward_key(
    query,
    grad_output,
    key,
    value,
    grad_key,
    grad_value,
    logit_params,
    dropout,
    terms,
    row_values,
    scale,
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
        fixed = (
            key_tile, value_tile, query, grad_output, logit_params, dropout, terms, row_values, batch, head, keys
        )  # fmt: skip
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
    key, value, query, grad_output, logit_params, dropout, terms, row_values, batch, head, keys = fixed
    rows = start + tl.arange(0, BLOCK_Q)
    query_tile, grad, shifts, delta_rows = load_query_block(
        query, grad_output, logit_params, row_values, batch, head, start, BLOCK_Q, key.shape[1], value.shape[1]
    )
    first, last = range_ends(logit_params, range_index, batch, rows)
    # transposed, [BLOCK_K, BLOCK_Q], so that the products below need no transpose
    products, grad_weights = dot_transposed(key, query_tile, PRECISION), dot_transposed(value, grad, PRECISION)
    used, grad_scores, slope = cell_gradients(
        products, grad_weights, shifts[None, :], delta_rows[None, :], logit_params, dropout, terms, batch, head,
        rows[None, :], keys[:, None], first[None, :], last[None, :], MASKED)  # fmt: skip
    grad_value = dot(used.to(grad.dtype), grad, grad_value, PRECISION)
    grad_key = dot((grad_scores * slope).to(query_tile.dtype), query_tile, grad_key, PRECISION)
    return grad_key, grad_value
