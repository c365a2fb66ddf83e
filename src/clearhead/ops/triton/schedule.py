"""Tile schedule in Triton: loops over the tiles that a query block or a key block requires.

The function `take` processes one tile, and `OPTIONS` are its compile-time options. Tiles in which every row may attend
to every key are processed without a mask.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from clearhead.ops.triton.logits import key_length, query_length

# Heads whose blocks run at the same time: so few that the rows they read stay in the L2 cache, if there are about as
# many queries as keys, and so many that blocks of different work fill the GPU.
ROWS_IN_FLIGHT = tl.constexpr(32768)
MIN_HEADS_IN_FLIGHT = tl.constexpr(4)
MAX_HEADS_IN_FLIGHT = tl.constexpr(16)


@triton.jit
def program_block(length, heads, batches, BLOCK: tl.constexpr):
    """Return the block, the head and the sequence of this program.

    Programs are ordered by bundles of heads; within a bundle, the first blocks of all heads precede the second ones.
    So if blocks differ in work, those that start last are short, and few heads are read at the same time.
    """
    blocks, program = tl.cdiv(length, BLOCK), tl.program_id(0)
    in_flight = ROWS_IN_FLIGHT // length  # separate: the interpreters of triton 3.7 and 3.8 refuse it as an argument
    in_flight = tl.minimum(tl.maximum(in_flight, MIN_HEADS_IN_FLIGHT), MAX_HEADS_IN_FLIGHT)
    first_head = program // (blocks * in_flight) * in_flight
    size = tl.minimum(heads * batches - first_head, in_flight)
    index = program - first_head * blocks
    head_index = first_head + index % size
    return index // size, (head_index % heads).to(tl.int64), (head_index // heads).to(tl.int64)


@triton.jit
def query_block(logit_params, BLOCK_Q: tl.constexpr):
    """Return the first row of this program's query block, all its rows, its head and its sequence.

    The last block comes first: under a causal mask late queries attend to most keys, and the longest work starts first.
    """
    block, head, batch = program_block(query_length(logit_params), logit_params.heads, logit_params.batches, BLOCK_Q)
    start = (tl.cdiv(query_length(logit_params), BLOCK_Q) - 1 - block) * BLOCK_Q
    return start, start + tl.arange(0, BLOCK_Q), head, batch


@triton.jit
def range_ends(logit_params, range_index, batch, rows):
    """Return the start and end of each row's range of keys; a row beyond the last has an empty range."""
    inside = rows < query_length(logit_params)
    if logit_params.ranges is None:
        return tl.zeros_like(rows), tl.where(inside, key_length(logit_params), 0)
    else:
        side = logit_params.range_batches * query_length(logit_params)
        sequence = batch % logit_params.range_batches
        pointers = logit_params.ranges + 2 * range_index * side + sequence * query_length(logit_params) + rows
        return tl.load(pointers, inside, other=0), tl.load(pointers + side, inside, other=0)


@triton.jit
def block_bounds(logit_params, first, last, rows):
    """Return the key bounds of a query block, `(start, full_start, full_end, end)`.

    Only keys in `[start, end)` are allowed for some row. Keys in `[full_start, full_end)` are allowed for every row.
    """
    seen, inside = first < last, rows < query_length(logit_params)
    first, last = tl.where(seen, first, key_length(logit_params)), tl.where(seen, last, 0)
    full, partial = tl.max(tl.where(inside, first, 0)), tl.min(tl.where(inside, last, key_length(logit_params)))
    return tl.min(first), full, partial, tl.max(last)


@triton.jit
def loop_over_keys(
    take: tl.constexpr, state, fixed, logit_params, batch, rows, low, high, BLOCK_K: tl.constexpr, RANGES: tl.constexpr,
    OPTIONS: tl.constexpr,
):  # fmt: skip
    """Return `state` after all key tiles between `low`, the start of a tile, and `high` that `rows` may attend to.

    take(state, fixed, first key of the tile, start and end of each row's range, BLOCK_K, OPTIONS, MASKED)
    """
    for range_index in tl.static_range(RANGES if RANGES > 0 else 1):
        first, last = range_ends(logit_params, range_index, batch, rows)
        start, full, partial, end = block_bounds(logit_params, first, last, rows)
        start, end = tl.maximum(start // BLOCK_K * BLOCK_K, low), tl.minimum(end, high)
        full, partial = (
            tl.maximum(tl.cdiv(full, BLOCK_K) * BLOCK_K, low),
            tl.minimum(partial, high) // BLOCK_K * BLOCK_K,
        )
        # without a full tile, all tiles are partial
        none = (full >= partial) | (logit_params.dense is not None)
        full, partial = tl.where(none, start, full), tl.where(none, start, partial)
        if logit_params.dense is None:
            for key_start in range(full, partial, BLOCK_K):
                state = take(state, fixed, key_start, first, last, BLOCK_K, OPTIONS, False)
        # the partial tiles on both sides in one loop: each further copy of its body takes time to compile
        for key_start in range(start + partial - full, end, BLOCK_K):
            key_start = tl.where(key_start < partial, key_start - (partial - full), key_start)
            state = take(state, fixed, key_start, first, last, BLOCK_K, OPTIONS, True)
    return state


@triton.jit
def loop_over_queries(
    take: tl.constexpr, state, fixed, logit_params, seen, batch, block, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    RANGES: tl.constexpr, OPTIONS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return `state` after every query block that may attend to a key of `block`.

    take(state, fixed, index of the range, first query, BLOCK_Q, OPTIONS, MASKED)

    STAGES is set on the loops, not only on the kernel, so that per-row values are prefetched as well.
    """
    for range_index in tl.static_range(RANGES if RANGES > 0 else 1):
        if RANGES > 0:
            key_blocks = tl.cdiv(key_length(logit_params), BLOCK_K)
            side = logit_params.range_batches * key_blocks
            sequence = batch % logit_params.range_batches
            pointers = seen + 4 * range_index * side + sequence * key_blocks + block
            start, full = tl.load(pointers), tl.load(pointers + side)
            partial, end = tl.load(pointers + 2 * side), tl.load(pointers + 3 * side)
        else:
            blocks = tl.cdiv(query_length(logit_params), BLOCK_Q)
            start, full, partial, end = 0, 0, blocks, blocks
        # a block with keys beyond the last, and a dense mask, require a mask in every tile
        none = (block * BLOCK_K + BLOCK_K > key_length(logit_params)) | (logit_params.dense is not None)
        full, partial = tl.where(none, start, full), tl.where(none, start, partial)
        if logit_params.dense is None:
            for query_block_index in tl.range(full, partial, num_stages=STAGES):
                state = take(state, fixed, range_index, query_block_index * BLOCK_Q, BLOCK_Q, OPTIONS, False)
        # as in `loop_over_keys`, the partial blocks on both sides in one loop
        for index in tl.range(start + partial - full, end, num_stages=STAGES):
            query_block_index = tl.where(index < partial, index - (partial - full), index)
            state = take(state, fixed, range_index, query_block_index * BLOCK_Q, BLOCK_Q, OPTIONS, True)
    return state
