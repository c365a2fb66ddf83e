"""Largest weights of each query on Hopper GPUs, by the kernel in `topk.cu`."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from clearhead.ops.call import AttentionCall
from clearhead.ops.hopper import query_blocks, support
from clearhead.ops.hopper.driver import compiled_kernel, data_pointer, row_map
from clearhead.ops.statistics import TopK
from clearhead.ops.triton.logits import LogitParams

WARP_GROUPS = 3  # more would not have enough registers
STAGES = {64: 4, 128: 3}  # by width
CANDIDATES_PER_LIST = 32  # products of a row that reach the bound, in the list of one thread
SPARE_CANDIDATES = 8  # that a list has room for, because its length is checked after as many have been appended
THREADS_PER_ROW, CANDIDATE_BYTES = 4, 8
WARP_ROWS = 16
FEW_KEYS, FEW_GROUPS, GROUPS = 16, 64, 128  # with fewer groups, the bound is found faster, but more products reach it
MAX_TOP_KEYS = 32
MIN_CELLS = 2**28  # smaller matrices take less than 1 ms in Triton, too, and NVRTC compiles in every process


class Problem(ctypes.Structure):
    """Arguments of the kernel; the fields are those of `Problem` in topk.cu."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("lse", "weights", "keys", "lists", "most", "ranges", "next_item")),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_int) for name in (*query_blocks.FIELDS, "count")),
    ]


def unsupported_reasons(call: AttentionCall, count: int) -> list[str]:
    """Return why the kernel cannot find the `count` largest weights of a call; empty if it can."""
    if count > MAX_TOP_KEYS:
        return [f"{count} keys are requested; expected at most {MAX_TOP_KEYS}"]
    return support.unsupported_reasons(call, MIN_CELLS) or query_blocks.unsupported_reasons(call)


def top_weights(call: AttentionCall, lse: Tensor, count: int) -> TopK | None:
    """Return the largest weights; None if too many products of a row reach its bound. Or raise a DriverError.

    Too many reach it if many products are equal, or if the largest are in few groups of keys.
    """
    width = call.query.shape[3]
    weights = lse.new_empty((*lse.shape, count))
    keys = torch.empty(weights.shape, dtype=torch.int64, device=lse.device)
    counters = torch.zeros(2, dtype=torch.int32, device=lse.device)  # one tensor, because each takes a kernel
    most, next_item = counters[:1], counters[1:]
    logit_params = LogitParams.from_call(call)
    lse = lse.contiguous()
    rows = query_blocks.thread_block_count(call, WARP_GROUPS) * WARP_GROUPS * query_blocks.WARP_GROUP_ROWS
    list_bytes = (CANDIDATES_PER_LIST + SPARE_CANDIDATES) * CANDIDATE_BYTES
    lists = torch.empty((rows, THREADS_PER_ROW * list_bytes), dtype=torch.uint8, device=lse.device)
    problem = Problem(
        lse.data_ptr(),
        weights.data_ptr(),
        keys.data_ptr(),
        lists.data_ptr(),
        most.data_ptr(),
        data_pointer(logit_params.ranges),
        next_item.data_ptr(),
        logit_params.scale,
        *query_blocks.fields(call, logit_params, streamed_tensors=1),
        count,
    )
    options = (
        ("DTYPE", support.DTYPES[call.query.dtype]),
        ("HEAD_DIM", width),
        ("WARP_GROUPS", WARP_GROUPS),
        ("STAGES", STAGES[width]),
        ("GROUPS", FEW_GROUPS if count <= FEW_KEYS else GROUPS),
    )
    maps = row_map(call.query, query_blocks.WARP_GROUP_ROWS), row_map(call.key, query_blocks.TILE_KEYS)
    query_blocks.launch(compiled_kernel("topk", options), call, WARP_GROUPS, shared_bytes(width), (*maps, problem))
    return None if int(most) > CANDIDATES_PER_LIST else TopK(weights, keys)


def shared_bytes(width: int) -> int:
    """Return the dynamic shared memory of a thread block: queries, a ring of keys, and a row of candidates per warp."""
    warps = WARP_GROUPS * query_blocks.WARP_GROUP_ROWS // WARP_ROWS
    candidates = warps * THREADS_PER_ROW * CANDIDATES_PER_LIST
    return query_blocks.shared_bytes(width, WARP_GROUPS, STAGES[width], rings=1) + candidates * CANDIDATE_BYTES
