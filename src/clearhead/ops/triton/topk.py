"""The largest weights of each query in Triton, in two passes over the scores and O(n) memory.

Keys fall into as many groups as a tile has columns. The k-th largest of a row's group maxima is a bound that at least
k of its scores reach, and few more. The second pass writes down those that reach it, and the best of them are taken.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false, reportOperatorIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from clearhead.ops.call import AttentionCall
from clearhead.ops.statistics import TopK
from clearhead.ops.triton.config import block_count, constants, matmul_precision, tile_for
from clearhead.ops.triton.logits import LogitParams, product, rows_at, rows_of, scored, shift_at, shifts, unit
from clearhead.ops.triton.schedule import over_keys, own_rows, program_place

CANDIDATES_PER_BLOCK = 64  # for scores of a row that reach the bound
MAX_TOP_KEYS = 32
MERGED_ROWS = 16  # that one program puts in order


def top_weights(call: AttentionCall, lse: Tensor, count: int) -> TopK | None:
    """None where more scores reach a row's bound than there is room for: where many are equal, or lie in few groups."""
    batch, heads, q_len, key_dim = call.query.shape
    tile = tile_for("top", call.query.dtype, key_dim, q_len)
    scores, multiplied = LogitParams.from_call(call), matmul_precision(call.query.dtype)
    bounds = lse.new_empty(lse.shape)
    arguments = (rows_of(call.query, tile.queries), rows_of(call.key, tile.keys), scores)
    known = constants(call, tile)
    grid = (block_count(q_len, tile.queries) * heads * batch,)
    _bounds[grid](*arguments, bounds, count, **known, PRECISION=multiplied)
    reached = torch.empty(lse.shape, dtype=torch.int32, device=lse.device)
    logits = lse.new_empty((*lse.shape, CANDIDATES_PER_BLOCK))
    keys = torch.empty(logits.shape, dtype=torch.int32, device=lse.device)
    _candidates[grid](*arguments, bounds, reached, logits, keys, **known, OPTIONS=(multiplied, CANDIDATES_PER_BLOCK))
    if int(reached.max()) > CANDIDATES_PER_BLOCK:
        return None
    weights = lse.new_empty((*lse.shape, count))
    chosen = torch.empty(weights.shape, dtype=torch.int64, device=lse.device)
    rows = block_count(q_len, MERGED_ROWS) * heads * batch
    _best[(rows,)](
        scores,
        shifts(scores, lse),
        reached,
        logits,
        keys,
        weights,
        chosen,
        count,
        ROWS=MERGED_ROWS,
        ROOM=CANDIDATES_PER_BLOCK,
    )
    return TopK(weights, chosen)


@triton.jit
def _bounds(
    query,
    key,
    scores,
    bounds,
    count,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    RANGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    start, rows, head, batch = own_rows(scores, BLOCK_Q)
    tile = rows_at(query, batch, head, start, BLOCK_Q, BLOCK_D)
    fixed = (tile, key, scores, batch, head, rows)
    peaks = tl.full([BLOCK_Q, BLOCK_K], -float("inf"), dtype=tl.float32)
    peaks = over_keys(_take_peaks, peaks, fixed, scores, batch, rows, 0, scores.kv_len, BLOCK_K, RANGES, PRECISION)
    bound = tl.max(peaks, 1)
    for _ in range(1, count):
        peaks = tl.where(peaks == bound[:, None], -float("inf"), peaks)
        bound = tl.max(peaks, 1)
    # a little lower, for the second pass may round otherwise
    bound = tl.where(bound == -float("inf"), bound, bound - tl.abs(bound) * 1e-5 - 1e-30)
    tl.store(bounds + (batch * scores.heads + head) * scores.q_len + rows, bound, rows < scores.q_len)


@triton.jit
def _logits(fixed, place, first, last, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr):
    query, key, scores, batch, head, rows = fixed
    keys = place + tl.arange(0, BLOCK_K)
    products = product(query, rows_at(key, batch, head // scores.group, place, BLOCK_K, query.shape[1]), PRECISION)
    return scored(products, scores, batch, head, rows[:, None], keys[None, :], first[:, None], last[:, None], MASKED)


@triton.jit
def _take_peaks(peaks, fixed, place, first, last, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr):
    """A tile's columns are the groups."""
    return tl.maximum(peaks, _logits(fixed, place, first, last, BLOCK_K, PRECISION, MASKED))


@triton.jit
def _candidates(
    query,
    key,
    scores,
    bounds,
    reached,
    logits,
    keys,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    RANGES: tl.constexpr,
    OPTIONS: tl.constexpr,
):
    start, rows, head, batch = own_rows(scores, BLOCK_Q)
    tile = rows_at(query, batch, head, start, BLOCK_Q, BLOCK_D)
    numbers = (batch * scores.heads + head) * scores.q_len + rows
    bound = tl.load(bounds + numbers, rows < scores.q_len, other=float("inf"))
    fixed = ((tile, key, scores, batch, head, rows), numbers, logits, keys)
    state = (bound, tl.zeros([BLOCK_Q], dtype=tl.int32))
    state = over_keys(_write_down, state, fixed, scores, batch, rows, 0, scores.kv_len, BLOCK_K, RANGES, OPTIONS)
    tl.store(reached + numbers, state[1], rows < scores.q_len)


@triton.jit
def _write_down(state, fixed, place, first, last, BLOCK_K: tl.constexpr, OPTIONS: tl.constexpr, MASKED: tl.constexpr):
    """Keep what reaches the bound, of each row its largest first, in as many rounds as the fullest row needs."""
    bound, count = state
    inner, numbers, logits, keys = fixed
    PRECISION: tl.constexpr = OPTIONS[0]
    ROOM: tl.constexpr = OPTIONS[1]
    found = _logits(inner, place, first, last, BLOCK_K, PRECISION, MASKED)
    own = (place + tl.arange(0, BLOCK_K))[None, :]
    hit = (found >= bound[:, None]) & (found > -float("inf"))
    left = tl.where(hit, found, -float("inf"))
    for _ in range(tl.max(tl.sum(hit.to(tl.int32), 1))):
        largest = tl.max(left, 1)
        key = tl.min(tl.where(left == largest[:, None], own, 2147483647), 1)
        some = largest > -float("inf")
        kept = some & (count < ROOM)
        tl.store(logits + numbers * ROOM + count, largest, kept)
        tl.store(keys + numbers * ROOM + count, key, kept)
        left = tl.where(own == key[:, None], -float("inf"), left)
        count += some.to(tl.int32)
    return bound, count


@triton.jit
def _best(scores, shift, reached, logits, keys, weights, chosen, count, ROWS: tl.constexpr, ROOM: tl.constexpr):
    """The largest of what was written down, and of equal ones those of the first keys."""
    block, head, batch = program_place(scores.q_len, scores.heads, scores.batches, ROWS)
    rows = block * ROWS + tl.arange(0, ROWS)
    inside = rows < scores.q_len
    numbers = (batch * scores.heads + head) * scores.q_len + rows
    slots = tl.arange(0, ROOM)
    there = slots[None, :] < tl.load(reached + numbers, inside, other=0)[:, None]
    places = numbers[:, None] * ROOM + slots[None, :]
    left = tl.load(logits + places, there, other=-float("inf"))
    key = tl.load(keys + places, there, other=-1)
    own = shift_at(shift, scores, batch, head, rows)
    for number in range(count):
        largest = tl.max(left, 1)
        first = tl.min(tl.where(left == largest[:, None], key, 2147483647), 1)
        some = largest > -float("inf")
        left = tl.where(key == first[:, None], -float("inf"), left)
        weight = tl.where(some, tl.exp2(tl.where(some, largest, 0.0) * unit(scores) - own), 0.0)
        tl.store(weights + numbers * count + number, weight, inside)
        tl.store(chosen + numbers * count + number, tl.where(some, first, -1).to(tl.int64), inside)
