"""Gradient of a tensor bias in Triton: one program per tile, summing over the sequences and heads that share it."""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from clearhead.ops.triton.backward import ROWS, BackwardInputs, load_query_block
from clearhead.ops.triton.cell_gradients import cell_gradients
from clearhead.ops.triton.config import TileConfig, block_count
from clearhead.ops.triton.launch import matrix_readers
from clearhead.ops.triton.logits import dot_transposed, key_length, load_rows, query_length
from clearhead.ops.triton.schedule import range_ends
from clearhead.ops.triton.tiles import launch_with_tile


def grad_of_bias(backward_inputs: BackwardInputs) -> Tensor:
    """Return the gradient of the scores, summed over the broadcast axes of the bias, in its shape and dtype."""
    bias = backward_inputs.call.tensor_bias
    assert bias is not None
    batch, heads, q_len, _ = backward_inputs.call.query.shape
    kv_len = backward_inputs.call.key.shape[2]
    bias_batch, bias_heads, bias_rows, bias_keys = bias.shape

    def launch(tile: TileConfig) -> Tensor:
        blocks, key_blocks = block_count(q_len, tile.queries), block_count(kv_len, tile.keys)
        # along an axis of size 1, each block of rows or keys stores its sum; `sum_to_size` adds these
        shape = (bias_batch, bias_heads, blocks if bias_rows == 1 else q_len, key_blocks if bias_keys == 1 else kv_len)
        readers = matrix_readers(backward_inputs.matrices, ROWS, tile)
        grad = backward_inputs.row_values.new_empty(shape)
        _bias[(blocks * key_blocks, bias_heads, bias_batch)](
            *(reader(matrix) for reader, matrix in zip(readers, backward_inputs.matrices, strict=True)),
            *backward_inputs.arguments,
            grad,
            shape[2],
            shape[3],
            batch // bias_batch,
            heads // bias_heads,
            ONE_ROW=bias_rows == 1,
            ONE_KEY=bias_keys == 1,
            **backward_inputs.constants(tile),
        )
        return grad

    grad = launch_with_tile("backward_bias", backward_inputs.call, q_len, launch)
    return grad.sum_to_size(bias.shape).to(bias.dtype)


@triton.jit(do_not_specialize=["grad_rows", "grad_keys"])
def _bias(
    query,
    grad_output,
    key,
    value,
    logit_params,
    dropout,
    terms,
    row_values,
    grad,
    grad_rows,
    grad_keys,
    batches,
    heads,
    ONE_ROW: tl.constexpr,
    ONE_KEY: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    RANGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    key_blocks = tl.cdiv(key_length(logit_params), BLOCK_K)
    block, key_block = tl.program_id(0) // key_blocks, tl.program_id(0) % key_blocks
    sums = block.to(tl.int64) * grad_keys  # offset of this block's sums
    bias_head, bias_batch = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    rows, keys = block * BLOCK_Q + tl.arange(0, BLOCK_Q), key_block * BLOCK_K + tl.arange(0, BLOCK_K)
    grad_tile = tl.zeros([BLOCK_Q, BLOCK_K], dtype=tl.float32)
    # all sequences and heads that share this tile of the bias
    for turn in range(batches * heads):
        batch, head = bias_batch + turn // heads, bias_head + turn % heads
        tile, grads, shifts, delta_rows = load_query_block(
            query, grad_output, logit_params, row_values, batch, head, block * BLOCK_Q, BLOCK_Q, BLOCK_D, BLOCK_V
        )
        key_head = head // logit_params.group
        products = dot_transposed(
            tile, load_rows(key, batch, key_head, key_block * BLOCK_K, BLOCK_K, BLOCK_D), PRECISION
        )
        values = load_rows(value, batch, key_head, key_block * BLOCK_K, BLOCK_K, BLOCK_V)
        grad_weights = dot_transposed(grads, values, PRECISION)
        for range_index in tl.static_range(RANGES if RANGES > 0 else 1):
            first, last = range_ends(logit_params, range_index, batch, rows)
            _, grad_scores, _ = cell_gradients(
                products, grad_weights, shifts[:, None], delta_rows[:, None], logit_params, dropout, terms, batch, head,
                rows[:, None], keys[None, :], first[:, None], last[:, None], True)  # fmt: skip
            grad_tile += grad_scores
    start = grad + (bias_batch * tl.num_programs(1) + bias_head) * grad_rows * grad_keys
    if ONE_ROW and ONE_KEY:
        tl.store(start + sums + key_block, tl.sum(grad_tile))
    elif ONE_ROW:
        tl.store(start + sums + keys, tl.sum(grad_tile, 0), keys < key_length(logit_params))
    elif ONE_KEY:
        pointers = start + rows.to(tl.int64) * grad_keys + key_block
        tl.store(pointers, tl.sum(grad_tile, 1), rows < query_length(logit_params))
    else:
        inside = (rows < query_length(logit_params))[:, None] & (keys < key_length(logit_params))[None, :]
        tl.store(start + rows[:, None].to(tl.int64) * grad_keys + keys[None, :], grad_tile, inside)
