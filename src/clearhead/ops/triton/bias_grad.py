"""The gradient of a tensor bias in Triton: one program for each tile of the bias, over all it was broadcast to."""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from clearhead.ops.triton.backward import BackwardInputs, cell_gradients, load_query_block
from clearhead.ops.triton.config import block_count
from clearhead.ops.triton.logits import product, rows_at
from clearhead.ops.triton.schedule import range_ends


def grad_of_bias(backward_inputs: BackwardInputs) -> Tensor:
    """The sum of the scores' gradients over the axes along which the bias was broadcast, in its shape and dtype."""
    bias = backward_inputs.call.tensor_bias
    assert bias is not None
    batch, heads, q_len, _ = backward_inputs.call.query.shape
    kv_len, tile = backward_inputs.call.key.shape[2], backward_inputs.tile("backward_query")
    own_batch, own_heads, own_rows, own_keys = bias.shape
    blocks, key_blocks = block_count(q_len, tile.queries), block_count(kv_len, tile.keys)
    # along an axis of 1 each block of rows or keys leaves its sum, added up below
    shape = (own_batch, own_heads, blocks if own_rows == 1 else q_len, key_blocks if own_keys == 1 else kv_len)
    grad = backward_inputs.delta.new_empty(shape)
    *arguments, _ = backward_inputs.arguments(tile)
    constants = backward_inputs.constants(tile) | {"num_stages": 1}
    _bias[(blocks * key_blocks, own_heads, own_batch)](
        *arguments,
        grad,
        shape[2],
        shape[3],
        batch // own_batch,
        heads // own_heads,
        ONE_ROW=own_rows == 1,
        ONE_KEY=own_keys == 1,
        **constants,
    )
    return grad.sum_to_size(bias.shape).to(bias.dtype)


@triton.jit
def _bias(
    query,
    grad_output,
    key,
    value,
    scores,
    dropout,
    shift,
    delta,
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
    key_blocks = tl.cdiv(scores.kv_len, BLOCK_K)
    block, key_block = tl.program_id(0) // key_blocks, tl.program_id(0) % key_blocks
    sums = block.to(tl.int64) * grad_keys  # where a block's own begin
    own_head, own_batch = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    rows, keys = block * BLOCK_Q + tl.arange(0, BLOCK_Q), key_block * BLOCK_K + tl.arange(0, BLOCK_K)
    summed = tl.zeros([BLOCK_Q, BLOCK_K], dtype=tl.float32)
    # what the bias has one of stands for all
    for turn in range(batches * heads):
        batch, head = own_batch + turn // heads, own_head + turn % heads
        tile, grads, shifts, dots = load_query_block(
            query, grad_output, scores, shift, delta, batch, head, block * BLOCK_Q, BLOCK_Q, BLOCK_D, BLOCK_V
        )
        key_head = head // scores.group
        products = product(tile, rows_at(key, batch, key_head, key_block * BLOCK_K, BLOCK_K, BLOCK_D), PRECISION)
        values = rows_at(value, batch, key_head, key_block * BLOCK_K, BLOCK_K, BLOCK_V)
        grad_weights = product(grads, values, PRECISION)
        for number in tl.static_range(RANGES if RANGES > 0 else 1):
            first, last = range_ends(scores, number, batch, rows)
            _, grad_scores, _ = cell_gradients(
                products, grad_weights, shifts[:, None], dots[:, None], scores, dropout, batch, head, rows[:, None],
                keys[None, :], first[:, None], last[:, None], True)  # fmt: skip
            summed += grad_scores
    start = grad + (own_batch * tl.num_programs(1) + own_head) * grad_rows * grad_keys
    if ONE_ROW and ONE_KEY:
        tl.store(start + sums + key_block, tl.sum(summed))
    elif ONE_ROW:
        tl.store(start + sums + keys, tl.sum(summed, 0), keys < scores.kv_len)
    elif ONE_KEY:
        tl.store(start + rows.to(tl.int64) * grad_keys + key_block, tl.sum(summed, 1), rows < scores.q_len)
    else:
        inside = (rows < scores.q_len)[:, None] & (keys < scores.kv_len)[None, :]
        tl.store(start + rows[:, None].to(tl.int64) * grad_keys + keys[None, :], summed, inside)
