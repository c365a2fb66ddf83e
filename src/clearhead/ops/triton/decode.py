"""The forward pass of a few queries against many keys, as in decoding, split over the keys so that it fills the GPU.

A program takes the queries of all heads that read one key head, and a piece of its keys; what the pieces give is merged
by their log-sum-exp. Pieces that no query may attend to cost next to nothing, so ragged caches cost what they hold.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from clearhead.ops.call import AttentionCall
from clearhead.ops.triton.config import TileConfig, block_count, constants, matmul_precision, padded_width, tile_for
from clearhead.ops.triton.dropout import DropoutParams
from clearhead.ops.triton.forward import finished, no_keys_yet, take_keys
from clearhead.ops.triton.logits import LN_2, LOG2_E, LogitParams, StridedTensor, chosen_rows, rows_of, unit
from clearhead.ops.triton.schedule import over_keys

MAX_DECODING_QUERIES = 16
PROGRAMS = 2048  # some times what runs at once, so that long and short pieces even out
STEP = 16  # pieces merged at a time


def decode(call: AttentionCall, tile: TileConfig | None = None) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp."""
    query, value = call.query, call.value
    assert value is not None
    batch, heads, q_len, key_dim = query.shape
    kv_heads, kv_len, value_dim = value.shape[1:]
    packed = heads // kv_heads * q_len  # the queries of all heads that read one key head
    tile = tile or tile_for("decode", query.dtype, max(key_dim, value_dim), packed)
    blocks = block_count(packed, tile.queries)
    least = block_count(kv_len * batch * kv_heads * blocks, PROGRAMS)
    piece = block_count(max(least, 4 * tile.keys), tile.keys) * tile.keys
    pieces = block_count(kv_len, piece)
    output = query.new_empty((batch, heads, q_len, value_dim))
    lse = query.new_empty((batch, heads, q_len), dtype=torch.float32)
    parts = output[None] if pieces == 1 else lse.new_empty((pieces, *output.shape))
    part_lse = lse[None] if pieces == 1 else lse.new_empty((pieces, *lse.shape))
    scores = LogitParams.from_call(call)
    _decode[(pieces, blocks * kv_heads, batch)](
        StridedTensor.from_tensor(query),
        rows_of(call.key, tile.keys),
        rows_of(value, tile.keys),
        scores,
        DropoutParams.from_call(call),
        parts,
        part_lse,
        kv_heads,
        piece,
        value_dim,
        BLOCK_V=padded_width(value_dim),
        PRECISION=matmul_precision(query.dtype),
        **constants(call, tile),
    )
    if pieces > 1:
        rows = lse.numel()
        _merge[(rows,)](parts, part_lse, output, lse, pieces, rows, value_dim, padded_width(value_dim), STEP)
    return output, lse


@triton.jit
def _decode(
    query,
    key,
    value,
    scores,
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
    number, batch = tl.program_id(0), tl.program_id(2).to(tl.int64)
    key_head = (tl.program_id(1) % kv_heads).to(tl.int64)
    packed = tl.program_id(1) // kv_heads * BLOCK_Q + tl.arange(0, BLOCK_Q)
    member = packed // scores.q_len
    head = key_head * scores.group + tl.minimum(member, scores.group - 1)  # of each row
    rows = tl.where(member < scores.group, packed % scores.q_len, scores.q_len)
    tile = chosen_rows(query, batch, head[:, None], rows, BLOCK_D)
    summed, total, peak = no_keys_yet(scores, head, BLOCK_Q, BLOCK_V)
    # a sink is taken once, with the first piece
    total, peak = tl.where(number == 0, total, 0.0), tl.where(number == 0, peak, -float("inf"))
    fixed = (tile, key, value, scores, dropout, batch, head[:, None], key_head, rows)
    low = number * piece
    high = tl.minimum(low + piece, scores.kv_len)
    state = over_keys(
        take_keys, (summed, total, peak), fixed, scores, batch, rows, low, high, BLOCK_K, RANGES, PRECISION
    )
    result, logarithm = finished(state, unit(scores))
    texts = tl.num_programs(2).to(tl.int64)
    place = ((number * texts + batch) * scores.heads + head) * scores.q_len + rows
    inside = rows < scores.q_len
    tl.store(part_lse + place, logarithm, inside)
    columns = tl.arange(0, BLOCK_V)
    places = place[:, None] * value_dim + columns[None, :]
    tl.store(parts + places, result.to(parts.dtype.element_ty), inside[:, None] & (columns < value_dim)[None, :])


@triton.jit
def _merge(parts, part_lse, output, lse, pieces, rows, value_dim, BLOCK_V: tl.constexpr, STEP: tl.constexpr):
    """One row from its pieces: Σ exp(lse_p − lse) · output_p."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK_V)
    peak, total = -float("inf"), 0.0
    summed = tl.zeros([BLOCK_V], dtype=tl.float32)
    for start in range(0, pieces, STEP):
        numbers = start + tl.arange(0, STEP)
        logarithms = tl.load(part_lse + numbers * rows + row, numbers < pieces, other=-float("inf")) * LOG2_E
        new_peak = tl.maximum(peak, tl.max(logarithms))
        pivot = tl.where(new_peak == -float("inf"), 0.0, new_peak)
        shares = tl.exp2(logarithms - pivot)
        shrink = tl.exp2(peak - pivot)
        places = (numbers.to(tl.int64) * rows + row)[:, None] * value_dim + columns[None, :]
        there = (numbers < pieces)[:, None] & (columns < value_dim)[None, :]
        part = tl.load(parts + places, there, other=0.0)
        summed = summed * shrink + tl.sum(part * shares[:, None], 0)
        total = total * shrink + tl.sum(shares)
        peak = new_peak
    some = total > 0
    total = tl.where(some, total, 1.0)
    tl.store(output + row * value_dim + columns, (summed / total).to(output.dtype.element_ty), columns < value_dim)
    tl.store(lse + row, tl.where(some, (peak + tl.log2(total)) * LN_2, -float("inf")))
