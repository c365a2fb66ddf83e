"""Walking the tiles of a matrix in Triton: which of them a block of queries, or of keys, has to look at.

What is done with a tile is a function given as `take`; tiles that every row sees whole are taken without a mask.
`OPTIONS` is what it has to know when it is compiled.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

TOGETHER = tl.constexpr(16)  # heads whose blocks are worked on at the same time


@triton.jit
def program_place(length, heads, batches, BLOCK: tl.constexpr):
    """Which block of a sequence this program works on, and for which head and text.

    A few heads at a time, their first blocks before their second ones: where blocks differ in work, those that start
    last are short, and few heads' rows are read at once.
    """
    blocks, program = tl.cdiv(length, BLOCK), tl.program_id(0)
    bundle = program // (blocks * TOGETHER)
    size = tl.minimum(heads * batches - bundle * TOGETHER, TOGETHER)
    place = program - bundle * blocks * TOGETHER
    number = bundle * TOGETHER + place % size
    return place // size, (number % heads).to(tl.int64), (number // heads).to(tl.int64)


@triton.jit
def own_rows(scores, BLOCK_Q: tl.constexpr):
    """The first row of this program's block of queries, all its rows, its head and text.

    Late queries see most keys where a mask is causal: longest work first.
    """
    block, head, batch = program_place(scores.q_len, scores.heads, scores.batches, BLOCK_Q)
    start = (tl.cdiv(scores.q_len, BLOCK_Q) - 1 - block) * BLOCK_Q
    return start, start + tl.arange(0, BLOCK_Q), head, batch


@triton.jit
def range_ends(scores, number, batch, rows):
    """Where each row's range of keys begins and ends; a row beyond the last has an empty one."""
    inside = rows < scores.q_len
    if scores.ranges is None:
        return tl.zeros_like(rows), tl.where(inside, scores.kv_len, 0)
    else:
        place = scores.ranges + 2 * number * scores.range_side + batch * scores.range_batch + rows
        return tl.load(place, inside, other=0), tl.load(place + scores.range_side, inside, other=0)


@triton.jit
def span(scores, first, last, rows):
    """Of a block of rows: where the keys begin that some row sees, that all see, that only some see again; the end."""
    seen, inside = first < last, rows < scores.q_len
    first, last = tl.where(seen, first, scores.kv_len), tl.where(seen, last, 0)
    full, partial = tl.max(tl.where(inside, first, 0)), tl.min(tl.where(inside, last, scores.kv_len))
    return tl.min(first), full, partial, tl.max(last)


@triton.jit
def over_keys(
    take: tl.constexpr, state, fixed, scores, batch, rows, low, high, BLOCK_K: tl.constexpr, RANGES: tl.constexpr,
    OPTIONS: tl.constexpr,
):  # fmt: skip
    """`state` after every tile of keys that some of `rows` may attend to, from `low`, where a tile begins, to `high`.

    take(state, fixed, first key of the tile, first and last key of each row's range, BLOCK_K, OPTIONS, MASKED)
    """
    for number in tl.static_range(RANGES if RANGES > 0 else 1):
        first, last = range_ends(scores, number, batch, rows)
        start, full, partial, end = span(scores, first, last, rows)
        start, end = tl.maximum(start // BLOCK_K * BLOCK_K, low), tl.minimum(end, high)
        full, partial = (
            tl.maximum(tl.cdiv(full, BLOCK_K) * BLOCK_K, low),
            tl.minimum(partial, high) // BLOCK_K * BLOCK_K,
        )
        # without a full tile, all of them are partial
        none = (full >= partial) | (scores.dense is not None)
        full, partial = tl.where(none, start, full), tl.where(none, start, partial)
        if RANGES > 0:
            for place in range(start, full, BLOCK_K):
                state = take(state, fixed, place, first, last, BLOCK_K, OPTIONS, True)
        if scores.dense is None:
            for place in range(full, partial, BLOCK_K):
                state = take(state, fixed, place, first, last, BLOCK_K, OPTIONS, False)
        for place in range(partial, end, BLOCK_K):
            state = take(state, fixed, place, first, last, BLOCK_K, OPTIONS, True)
    return state


@triton.jit
def over_queries(
    take: tl.constexpr, state, fixed, scores, seen, batch, block, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    RANGES: tl.constexpr, OPTIONS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """`state` after every block of queries that may attend to a key of `block`.

    take(state, fixed, number of the range, first query, BLOCK_Q, OPTIONS, MASKED)

    STAGES is said of the loops, not of the kernel alone: then what is read of each row is fetched ahead as well.
    """
    for number in tl.static_range(RANGES if RANGES > 0 else 1):
        if RANGES > 0:
            place = seen.pointer + 4 * number * seen.side + batch * seen.batch + block
            start, full = tl.load(place), tl.load(place + seen.side)
            partial, end = tl.load(place + 2 * seen.side), tl.load(place + 3 * seen.side)
        else:
            start, full, partial, end = 0, 0, tl.cdiv(scores.q_len, BLOCK_Q), tl.cdiv(scores.q_len, BLOCK_Q)
        # keys beyond the last, and a dense mask, need a mask everywhere
        none = (block * BLOCK_K + BLOCK_K > scores.kv_len) | (scores.dense is not None)
        full, partial = tl.where(none, start, full), tl.where(none, start, partial)
        if RANGES > 0:
            for number_of_block in tl.range(start, full, num_stages=STAGES):
                state = take(state, fixed, number, number_of_block * BLOCK_Q, BLOCK_Q, OPTIONS, True)
        if scores.dense is None:
            for number_of_block in tl.range(full, partial, num_stages=STAGES):
                state = take(state, fixed, number, number_of_block * BLOCK_Q, BLOCK_Q, OPTIONS, False)
        for number_of_block in tl.range(partial, end, num_stages=STAGES):
            state = take(state, fixed, number, number_of_block * BLOCK_Q, BLOCK_Q, OPTIONS, True)
    return state
