"""Blocks of queries that the kernels built on `query_blocks.cuh` process one after another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from clearhead.ops.call import AttentionCall
from clearhead.ops.hopper import support
from clearhead.ops.hopper.driver import Kernel

TILE_KEYS, WARP_GROUP_ROWS, WARP_GROUP_THREADS = 128, 64, 128
ITEMS = 2  # blocks of queries in shared memory
MAX_RANGES = 8
# integers of `Problem` that the kernels have in common
FIELDS = ("heads", "group", "batches", "q_len", "kv_len", "range_count", "range_batches", "bundle")


def unsupported_reasons(call: AttentionCall) -> list[str]:
    """Return why no such kernel can take a call for which there are no reasons of `support`; empty if one can."""
    ranges = call.lower().ranges
    if ranges is not None and ranges.shape[0] > MAX_RANGES:
        return [f"a query has up to {ranges.shape[0]} ranges of keys; expected at most {MAX_RANGES}"]
    return []


def fields(call: AttentionCall, logit_params: Any, streamed_tensors: int) -> tuple[int, ...]:
    """Return the values of `FIELDS`.

    Args:
        call: attention call.
        logit_params: its `LogitParams`.
        streamed_tensors: tensors with rows for each key that all blocks of a head read: keys, or keys and values.
    """
    batch, heads, q_len, width = call.query.shape
    kv_heads, kv_len = call.key.shape[1:3]
    ranges = logit_params.ranges
    head_bytes = streamed_tensors * kv_len * width * call.key.element_size()
    return (
        heads,
        logit_params.group,
        batch,
        q_len,
        kv_len,
        0 if ranges is None else ranges.shape[0],
        logit_params.range_batches or 1,
        support.heads_in_flight(head_bytes, kv_heads * batch) * logit_params.group,
    )


def block_count(call: AttentionCall, warp_groups: int) -> int:
    """Return the number of blocks of queries that the thread blocks share."""
    batch, heads, q_len, _ = call.query.shape
    return math.ceil(q_len / (warp_groups * WARP_GROUP_ROWS)) * heads * batch


def thread_block_count(call: AttentionCall, warp_groups: int) -> int:
    """Return the number of thread blocks: one on each processor, or fewer if there are fewer blocks of queries."""
    return min(block_count(call, warp_groups), support.processor_count(call.query.device))


def launch(kernel: Kernel, call: AttentionCall, warp_groups: int, shared_bytes: int, arguments: Sequence[Any]) -> None:
    """Launch the thread blocks of a call."""
    kernel.launch(
        thread_block_count(call, warp_groups), WARP_GROUP_THREADS * (warp_groups + 1), shared_bytes, arguments
    )


def shared_bytes(width: int, warp_groups: int, stages: int, rings: int) -> int:
    """Return the dynamic shared memory of queries, rings of tiles, and the barriers of both."""
    rows = ITEMS * warp_groups * WARP_GROUP_ROWS + rings * stages * TILE_KEYS
    return rows * 2 * width + 16 * (rings * stages + ITEMS)
