"""Softmax of written scores in place, with log-sum-exp, entropy and largest score of each row.

One launch replaces about ten of torch, each of which reads or writes all scores and takes as long to launch as a short
decoding step runs.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.ops.triton.launch import POINTER_ALIGNMENT_BYTES, launch_on_grid, specialization_of

KEYS_PER_STEP = 2048
WARPS = 8
SPECIALIZED_MULTIPLE = 16  # Triton compiles separate kernels for integers that are multiples of it


class RowSummaries(NamedTuple):
    """Results for each row, in float32.

    Attributes:
        lse: log-sum-exp, sink included; −inf without a key.
        entropy: entropy in nats; 0 without a key.
        peak: largest score; −inf without a key.
    """

    lse: Float[Tensor, "rows heads"]
    entropy: Float[Tensor, "rows heads"]
    peak: Float[Tensor, "rows heads"]


def softmax_in_place(
    scores: Float[Tensor, "rows heads keys"],
    kv_lens: Int[Tensor, " rows"],
    sinks: Float[Tensor, " heads"] | None = None,
) -> RowSummaries:
    """Replace scores by weights, and return what the rows have in common with them.

    Args:
        scores: scores in float32, contiguous; −inf for keys that a query may not attend to. They are overwritten.
        kv_lens: number of keys of each row. Scores beyond are not read, and their weights are 0.
        sinks: additional score of each head in the denominator.
    """
    rows, heads, keys = scores.shape
    results = RowSummaries(*(scores.new_empty((rows, heads)) for _ in RowSummaries._fields))
    if rows:
        kv_lens = kv_lens.contiguous()
        sinks = None if sinks is None else sinks.contiguous()
        launch_on_grid(
            _softmax_in_place,
            (
                keys == 1, keys % SPECIALIZED_MULTIPLE == 0, scores.data_ptr() % POINTER_ALIGNMENT_BYTES,
                *specialization_of(kv_lens, sinks),
            ),
            (heads, rows, 1),
            (scores, kv_lens, sinks, *results, keys),
            {"STEP": KEYS_PER_STEP, "num_warps": WARPS},
        )  # fmt: skip
    return results


@triton.jit
def _softmax_in_place(scores, kv_lens, sinks, lse, entropy, peak, keys, STEP: tl.constexpr):
    head, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row = batch * tl.num_programs(0) + head  # int64 supports more than 2³¹ scores
    start = scores + row * keys
    kv_len = tl.minimum(tl.load(kv_lens + batch), keys).to(tl.int32)
    lanes = tl.arange(0, STEP)
    # one maximum and sum per lane, so that the loop has no reduction
    lane_max = tl.full([STEP], -float("inf"), dtype=tl.float32)
    lane_sum = tl.zeros([STEP], dtype=tl.float32)
    for position in range(0, kv_len, STEP):
        values = tl.load(start + position + lanes, position + lanes < kv_len, other=-float("inf"))
        new_max = tl.maximum(lane_max, values)
        # −inf − −inf would give NaN
        pivot = tl.where(new_max == -float("inf"), 0.0, new_max)
        lane_sum = lane_sum * tl.exp(lane_max - pivot) + tl.exp(values - pivot)
        lane_max = new_max
    largest = tl.max(lane_max)
    sink = tl.full([], -float("inf"), dtype=tl.float32)
    if sinks is not None:
        sink = tl.load(sinks + head).to(tl.float32)
    row_max = tl.maximum(largest, sink)
    pivot = tl.where(row_max == -float("inf"), 0.0, row_max)
    row_sum = tl.sum(lane_sum * tl.exp(lane_max - pivot)) + tl.exp(sink - pivot)
    some = row_sum != 0  # also if it is NaN
    logarithm = tl.where(some, pivot + tl.log(tl.where(some, row_sum, 1.0)), -float("inf"))
    tl.store(lse + row, logarithm)
    tl.store(peak + row, largest)
    shift = tl.where(some, logarithm, 0.0)
    lane_entropy = tl.zeros([STEP], dtype=tl.float32)
    for position in range(0, keys, STEP):
        indices = position + lanes
        values = tl.load(start + indices, indices < kv_len, other=-float("inf"))
        absent = values == -float("inf")
        logs = tl.where(absent, 0.0, values - shift)  # 0 · −inf would give NaN
        weights = tl.where(absent, 0.0, tl.exp(logs))
        lane_entropy -= weights * logs
        tl.store(start + indices, weights, indices < keys)
    tl.store(entropy + row, tl.sum(lane_entropy))
