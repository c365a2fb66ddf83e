"""The observing sweep in Triton: entropy, distance and column sums from (query, key, log-sum-exp).

A program that owns a block of keys adds weights cell by cell in registers and sums them once at its end, which is what
column sums cost least by; the sums of rows it adds to memory as it goes. Where the same bits are wanted every time,
rows are summed by programs that own them, in a pass of their own.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from clearhead.kernels.operation import Inputs
from clearhead.kernels.triton_blocks import seen_by
from clearhead.kernels.triton_scores import LOG2_E, Scores, distance, dot, range_ends, scored, span, tile_of
from clearhead.kernels.triton_tiles import Tile, padded, precision, tile_for

LN_2 = tl.constexpr(0.6931471805599453)


def observe(
    inputs: Inputs, lse: Tensor, *, entropy: bool, received: bool, distance: bool, tile: Tile | None = None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Entropy and distance of each row, and what each key receives, whichever are asked for; None for the others."""
    batch, heads, q_len, key_dim = inputs.query.shape
    kv_len = inputs.key.shape[2]
    rows = (entropy, distance)
    entropies, distances = (torch.zeros_like(lse) if wanted else None for wanted in rows)
    columns = lse.new_zeros((batch, heads, kv_len)) if received else None
    if 0 in (batch, heads, q_len, kv_len):
        return entropies, columns, distances
    scores, lse = Scores.of(inputs), lse.contiguous()
    together = received and any(rows) and not torch.are_deterministic_algorithms_enabled()

    def constants(tile: Tile) -> dict[str, int | str]:
        return {
            "KEY_DIM": key_dim,
            "BLOCK_Q": tile.queries,
            "BLOCK_K": tile.keys,
            "BLOCK_D": padded(key_dim),
            "RANGES": 0 if inputs.ranges is None else inputs.ranges.shape[0],
            "PRECISION": precision(inputs.query.dtype),
            "num_warps": tile.warps,
            "num_stages": tile.stages,
        }

    if any(rows) and not together:
        own = tile or tile_for("observe_rows", inputs.query.dtype, key_dim, q_len)
        grid = (triton.cdiv(q_len, own.queries) * heads * batch,)
        _observe_rows[grid](scores, lse, entropies, distances, **constants(own))
    if received:
        own = tile or tile_for("observe_columns", inputs.query.dtype, key_dim, q_len)
        blocks = triton.cdiv(kv_len, own.keys)
        seen = None if inputs.ranges is None else seen_by(inputs.ranges, kv_len, own)
        strides = (0, 0) if seen is None else (0 if seen.shape[2] == 1 else blocks, blocks * seen.shape[2])
        added = (entropies, distances) if together else (None, None)
        _observe_columns[(blocks * heads * batch,)](scores, lse, columns, *added, seen, *strides, **constants(own))
    return entropies, columns, distances


@triton.jit
def _weights(
    query, key, shift, scores, batch, head, rows, keys, first, last, MASKED: tl.constexpr, PRECISION: tl.constexpr
):
    """Weights of a tile `[BLOCK_Q, BLOCK_K]`, and their logarithms in base 2."""
    nothing = tl.zeros([rows.shape[0], keys.shape[0]], dtype=tl.float32)
    products = dot(query, tl.trans(key), nothing, PRECISION)
    logits = scored(products, scores, batch, head, rows[:, None], keys[None, :], first[:, None], last[:, None], MASKED)
    logarithms = logits - shift[:, None]
    weights = tl.exp2(logarithms)
    if MASKED or scores.bias is not None:
        # 0 · −∞ would be nan
        logarithms = tl.where(weights > 0, logarithms, 0.0)
    return weights, logarithms


@triton.jit
def _shift(scores, lse, batch, head, rows):
    """Log-sum-exp in base 2. A row without a key has −∞ and scores −∞: subtracting would give nan.

    Rows beyond the last have weights 0, and logarithms that are finite, so that their products are 0 as well.
    """
    inside = rows < scores.q_len
    shift = tl.load(lse + (batch * scores.heads + head) * scores.q_len + rows, inside, other=1e30) * LOG2_E
    return tl.where(shift == -float("inf"), 0.0, shift)


@triton.jit
def _observe_rows(
    scores,
    lse,
    entropies,
    distances,
    KEY_DIM: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    RANGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    blocks = tl.cdiv(scores.q_len, BLOCK_Q)
    program = tl.program_id(0)
    block = blocks - 1 - program % blocks
    head = (program // blocks % scores.heads).to(tl.int64)
    batch = (program // blocks // scores.heads).to(tl.int64)
    rows = block * BLOCK_Q + tl.arange(0, BLOCK_Q)
    query = tile_of(scores.query, batch, head, rows, tl.arange(0, BLOCK_D), scores.q_len, KEY_DIM, True)
    shift = _shift(scores, lse, batch, head, rows)
    surprise, reach = tl.zeros([BLOCK_Q], dtype=tl.float32), tl.zeros([BLOCK_Q], dtype=tl.float32)
    # fmt: off
    if RANGES == 0:
        first, last = tl.zeros_like(rows), tl.zeros_like(rows) + scores.kv_len
        whole = 0 if scores.dense is not None else scores.kv_len // BLOCK_K * BLOCK_K
        if scores.dense is None:
            surprise, reach = _look_over_keys(
                surprise, reach, query, shift, scores, entropies, distances, batch, head, rows, first, last, 0, whole,
                False, KEY_DIM, BLOCK_K, BLOCK_D, PRECISION)
        surprise, reach = _look_over_keys(
            surprise, reach, query, shift, scores, entropies, distances, batch, head, rows, first, last, whole,
            scores.kv_len, True, KEY_DIM, BLOCK_K, BLOCK_D, PRECISION)
    for number in tl.static_range(RANGES):
        first, last = range_ends(scores, number, batch, rows)
        start, full, partial, end = span(scores, first, last, rows, BLOCK_K)
        if scores.dense is not None:
            full, partial = end, end
        surprise, reach = _look_over_keys(
            surprise, reach, query, shift, scores, entropies, distances, batch, head, rows, first, last, start, full,
            True, KEY_DIM, BLOCK_K, BLOCK_D, PRECISION)
        if scores.dense is None:
            surprise, reach = _look_over_keys(
                surprise, reach, query, shift, scores, entropies, distances, batch, head, rows, first, last, full,
                partial, False, KEY_DIM, BLOCK_K, BLOCK_D, PRECISION)
        surprise, reach = _look_over_keys(
            surprise, reach, query, shift, scores, entropies, distances, batch, head, rows, first, last, partial, end,
            True, KEY_DIM, BLOCK_K, BLOCK_D, PRECISION)
    # fmt: on
    place = (batch * scores.heads + head) * scores.q_len + rows
    if entropies is not None:
        tl.store(entropies + place, surprise * -LN_2, rows < scores.q_len)
    if distances is not None:
        tl.store(distances + place, reach, rows < scores.q_len)


@triton.jit
def _look_over_keys(
    surprise, reach, query, shift, scores, entropies, distances, batch, head, rows, first, last, start, end,
    MASKED: tl.constexpr, KEY_DIM: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add Σ A log2 A and Σ A · distance of the keys from `start` to `end`."""
    key_head = head // scores.group
    for place in range(start, end, BLOCK_K):
        keys = place + tl.arange(0, BLOCK_K)
        key = tile_of(scores.key, batch, key_head, keys, tl.arange(0, BLOCK_D), scores.kv_len, KEY_DIM, MASKED)
        weights, logarithms = _weights(
            query, key, shift, scores, batch, head, rows, keys, first, last, MASKED, PRECISION
        )
        if entropies is not None:
            surprise += tl.sum(weights * logarithms, 1)
        if distances is not None:
            reach += tl.sum(weights * distance(scores, batch, rows[:, None], keys[None, :]), 1)
    return surprise, reach


@triton.jit
def _observe_columns(
    scores,
    lse,
    columns,
    entropies,
    distances,
    seen,
    seen_batch,
    seen_side,
    KEY_DIM: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    RANGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    blocks = tl.cdiv(scores.kv_len, BLOCK_K)
    program = tl.program_id(0)
    block = program % blocks
    head = (program // blocks % scores.heads).to(tl.int64)
    batch = (program // blocks // scores.heads).to(tl.int64)
    keys = block * BLOCK_K + tl.arange(0, BLOCK_K)
    key_head = head // scores.group
    key = tile_of(scores.key, batch, key_head, keys, tl.arange(0, BLOCK_D), scores.kv_len, KEY_DIM, True)
    summed = tl.zeros([BLOCK_Q, BLOCK_K], dtype=tl.float32)
    # fmt: off
    if RANGES == 0:
        count = tl.cdiv(scores.q_len, BLOCK_Q)
        # only the last block of keys may have some that do not exist
        if (scores.dense is None) & (block * BLOCK_K + BLOCK_K <= scores.kv_len):
            summed = _look_over_queries(
                summed, key, scores, lse, entropies, distances, batch, head, keys, 0, 0, count, False, False,
                KEY_DIM, BLOCK_Q, BLOCK_D, PRECISION)
        else:
            summed = _look_over_queries(
                summed, key, scores, lse, entropies, distances, batch, head, keys, 0, 0, count, False, True,
                KEY_DIM, BLOCK_Q, BLOCK_D, PRECISION)
    for number in tl.static_range(RANGES):
        place = seen + 4 * number * seen_side + batch * seen_batch + block
        start, full = tl.load(place), tl.load(place + seen_side)
        partial, end = tl.load(place + 2 * seen_side), tl.load(place + 3 * seen_side)
        if scores.dense is not None:
            full, partial = end, end
        if block * BLOCK_K + BLOCK_K > scores.kv_len:
            full, partial = end, end
        summed = _look_over_queries(
            summed, key, scores, lse, entropies, distances, batch, head, keys, number, start, full, True, True,
            KEY_DIM, BLOCK_Q, BLOCK_D, PRECISION)
        if scores.dense is None:
            summed = _look_over_queries(
                summed, key, scores, lse, entropies, distances, batch, head, keys, number, full, partial, False, False,
                KEY_DIM, BLOCK_Q, BLOCK_D, PRECISION)
        summed = _look_over_queries(
            summed, key, scores, lse, entropies, distances, batch, head, keys, number, partial, end, True, True,
            KEY_DIM, BLOCK_Q, BLOCK_D, PRECISION)
    # fmt: on
    place = columns + (batch * scores.heads + head) * scores.kv_len + keys
    tl.store(place, tl.sum(summed, 0), keys < scores.kv_len)


@triton.jit
def _look_over_queries(
    summed, key, scores, lse, entropies, distances, batch, head, keys, number, start, end, RANGED: tl.constexpr,
    MASKED: tl.constexpr, KEY_DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the weights of blocks of queries from `start` to `end` to a block of keys, and to rows in memory."""
    for block in range(start, end):
        rows = block * BLOCK_Q + tl.arange(0, BLOCK_Q)
        query = tile_of(scores.query, batch, head, rows, tl.arange(0, BLOCK_D), scores.q_len, KEY_DIM, True)
        shift = _shift(scores, lse, batch, head, rows)
        if RANGED:
            first, last = range_ends(scores, number, batch, rows)
        else:
            first, last = tl.zeros_like(rows), tl.zeros_like(rows) + scores.kv_len
        weights, logarithms = _weights(
            query, key, shift, scores, batch, head, rows, keys, first, last, MASKED, PRECISION
        )
        summed += weights
        inside = rows < scores.q_len
        place = (batch * scores.heads + head) * scores.q_len + rows
        if entropies is not None:
            surprise = tl.sum(weights * logarithms, 1)
            tl.atomic_add(entropies + place, surprise * -LN_2, inside, sem="relaxed")
        if distances is not None:
            reach = tl.sum(weights * distance(scores, batch, rows[:, None], keys[None, :]), 1)
            tl.atomic_add(distances + place, reach, inside, sem="relaxed")
    return summed
