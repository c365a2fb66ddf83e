"""Forward pass for few queries and many keys, as in decoding, split over the keys to fill the GPU.

A program processes the queries of all heads that read one key head, and a piece of its keys. The outputs of the pieces
are merged by their log-sum-exp. Pieces that no query may attend to take almost no time, so the cost of a ragged KV
cache depends on the actual lengths.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from clearhead.ops.call import AttentionCall
from clearhead.ops.triton.config import TileConfig, block_count, padded_width, value_constants
from clearhead.ops.triton.dropout import DropoutParams
from clearhead.ops.triton.forward import finalize_softmax, init_softmax, online_softmax_step
from clearhead.ops.triton.logits import (
    LN_2,
    LOG2_E,
    LogitParams,
    StridedTensor,
    deferred_scale,
    gather_rows,
    key_length,
    query_length,
    row_reader,
)
from clearhead.ops.triton.schedule import loop_over_keys
from clearhead.ops.triton.tiles import launch_with_tile

MAX_DECODING_QUERIES = 16
TARGET_PROGRAMS = 2048  # several times the number that run at once, to balance long and short pieces
PIECES_PER_STEP = 16  # pieces merged at a time


def decode(call: AttentionCall, tile: TileConfig | None = None) -> tuple[Tensor, Tensor]:
    """Return output and log-sum-exp."""
    query, value = call.query, call.value
    assert value is not None
    batch, heads, q_len, _ = query.shape
    kv_heads, kv_len, value_dim = value.shape[1:]
    packed = heads // kv_heads * q_len  # the queries of all heads that read one key head
    output = query.new_empty((batch, heads, q_len, value_dim))
    lse = query.new_empty((batch, heads, q_len), dtype=torch.float32)
    logit_params, dropout = LogitParams.from_call(call), DropoutParams.from_call(call)

    def launch(tile: TileConfig) -> None:
        blocks = block_count(packed, tile.queries)
        least = block_count(kv_len * batch * kv_heads * blocks, TARGET_PROGRAMS)
        piece = block_count(max(least, 4 * tile.keys), tile.keys) * tile.keys
        pieces = block_count(kv_len, piece)
        parts = output[None] if pieces == 1 else lse.new_empty((pieces, *output.shape))
        part_lse = lse[None] if pieces == 1 else lse.new_empty((pieces, *lse.shape))
        _decode[(pieces, blocks * kv_heads, batch)](
            StridedTensor.from_tensor(query),
            row_reader(call.key, tile.keys),
            row_reader(value, tile.keys),
            logit_params,
            dropout,
            parts,
            part_lse,
            kv_heads,
            piece,
            value_dim,
            **value_constants(call, tile),
        )
        if pieces > 1:
            rows, width = lse.numel(), padded_width(value_dim)
            _merge[(rows,)](parts, part_lse, output, lse, pieces, rows, value_dim, width, PIECES_PER_STEP)

    launch_with_tile("decode", call, packed, launch, tile=tile)
    return output, lse


@triton.jit(do_not_specialize=["piece"])
def _decode(
    query,
    key,
    value,
    logit_params,
    dropout,
    parts,
    part_lse,
    kv_heads,
    piece,
    value_dim,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    RANGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    piece_index, batch = tl.program_id(0), tl.program_id(2).to(tl.int64)
    key_head = (tl.program_id(1) % kv_heads).to(tl.int64)
    packed = tl.program_id(1) // kv_heads * BLOCK_Q + tl.arange(0, BLOCK_Q)
    q_len = query_length(logit_params)
    member = packed // q_len
    head = key_head * logit_params.group + tl.minimum(member, logit_params.group - 1)  # [BLOCK_Q]
    rows = tl.where(member < logit_params.group, packed % q_len, q_len)
    tile = gather_rows(query, batch, head[:, None], rows, BLOCK_D)
    accumulator, row_sum, row_max = init_softmax(logit_params, head, BLOCK_Q, BLOCK_V)
    # the first piece includes the sink
    row_sum, row_max = tl.where(piece_index == 0, row_sum, 0.0), tl.where(piece_index == 0, row_max, -float("inf"))
    fixed = (tile, key, value, logit_params, dropout, batch, head[:, None], key_head, rows)
    low = piece_index * piece
    high = tl.minimum(low + piece, key_length(logit_params))
    state = loop_over_keys(
        online_softmax_step,
        (accumulator, row_sum, row_max),
        fixed,
        logit_params,
        batch,
        rows,
        low,
        high,
        BLOCK_K,
        RANGES,
        PRECISION,
    )
    result, logarithm = finalize_softmax(state, deferred_scale(logit_params))
    batches = tl.num_programs(2).to(tl.int64)
    rows_offset = ((piece_index * batches + batch) * logit_params.heads + head) * q_len + rows
    inside = rows < q_len
    tl.store(part_lse + rows_offset, logarithm, inside)
    columns = tl.arange(0, BLOCK_V)
    offsets = rows_offset[:, None] * value_dim + columns[None, :]
    tl.store(parts + offsets, result.to(parts.dtype.element_ty), inside[:, None] & (columns < value_dim)[None, :])


@triton.jit(do_not_specialize=["pieces", "rows"])
def _merge(parts, part_lse, output, lse, pieces, rows, value_dim, BLOCK_V: tl.constexpr, STEP: tl.constexpr):
    """Merge the pieces of one row: Σ exp(lse_p − lse) · output_p."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK_V)
    row_max, row_sum = -float("inf"), 0.0
    accumulator = tl.zeros([BLOCK_V], dtype=tl.float32)
    for start in range(0, pieces, STEP):
        piece_indices = start + tl.arange(0, STEP)
        logarithms = (
            tl.load(part_lse + piece_indices * rows + row, piece_indices < pieces, other=-float("inf")) * LOG2_E
        )
        new_max = tl.maximum(row_max, tl.max(logarithms))
        pivot = tl.where(new_max == -float("inf"), 0.0, new_max)
        shares = tl.exp2(logarithms - pivot)
        rescale = tl.exp2(row_max - pivot)
        offsets = (piece_indices.to(tl.int64) * rows + row)[:, None] * value_dim + columns[None, :]
        inside = (piece_indices < pieces)[:, None] & (columns < value_dim)[None, :]
        part = tl.load(parts + offsets, inside, other=0.0)
        accumulator = accumulator * rescale + tl.sum(part * shares[:, None], 0)
        row_sum = row_sum * rescale + tl.sum(shares)
        row_max = new_max
    some = row_sum != 0  # also if it is NaN
    row_sum = tl.where(some, row_sum, 1.0)
    tl.store(
        output + row * value_dim + columns, (accumulator / row_sum).to(output.dtype.element_ty), columns < value_dim
    )
    tl.store(lse + row, tl.where(some, (row_max + tl.log2(row_sum)) * LN_2, -float("inf")))
