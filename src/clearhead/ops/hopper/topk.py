"""Largest weights of each query on Hopper GPUs, by the kernel in `topk.cu`."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from clearhead.ops.call import AttentionCall
from clearhead.ops.hopper import query_blocks, support
from clearhead.ops.hopper.driver import compiled_kernel, data_pointer, row_map
from clearhead.ops.statistics import TopK

WARP_GROUPS = {64: 3, 128: 2}  # by width: more would not have enough registers
STAGES = {64: 4, 128: 3}
CANDIDATES_PER_ROW = 64  # space for products that reach the bound
CANDIDATE_BYTES = 8
FEW_KEYS, FEW_GROUPS, GROUPS = 16, 32, 128  # with fewer groups, the bound is found faster, but more products reach it
MAX_TOP_KEYS = 32
MIN_CELLS = 2**28  # for smaller matrices, the kernels take about the same time


class Problem(ctypes.Structure):
    """Arguments of the kernel; the fields are those of `Problem` in topk.cu."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("lse", "weights", "keys", "most", "ranges", "next_item")),
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
    from clearhead.ops.triton.logits import LogitParams  # imports Triton, which dispatch does not require

    width = call.query.shape[3]
    weights = lse.new_empty((*lse.shape, count))
    keys = torch.empty(weights.shape, dtype=torch.int64, device=lse.device)
    counters = torch.zeros(2, dtype=torch.int32, device=lse.device)  # one tensor, because each takes a kernel
    most, next_item = counters[:1], counters[1:]
    logit_params = LogitParams.from_call(call)
    lse = lse.contiguous()
    groups = WARP_GROUPS[width]
    problem = Problem(
        lse.data_ptr(),
        weights.data_ptr(),
        keys.data_ptr(),
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
        ("WARP_GROUPS", groups),
        ("STAGES", STAGES[width]),
        ("GROUPS", FEW_GROUPS if count <= FEW_KEYS else GROUPS),
    )
    maps = row_map(call.query, query_blocks.WARP_GROUP_ROWS), row_map(call.key, query_blocks.TILE_KEYS)
    query_blocks.launch(compiled_kernel("topk", options), call, groups, shared_bytes(width), (*maps, problem))
    return None if int(most) > CANDIDATES_PER_ROW else TopK(weights, keys)


def shared_bytes(width: int) -> int:
    """Return the dynamic shared memory of a thread block: queries, a ring of keys, barriers, candidates and counts."""
    candidates = WARP_GROUPS[width] * query_blocks.WARP_GROUP_ROWS * (CANDIDATES_PER_ROW * CANDIDATE_BYTES + 4)
    return query_blocks.shared_bytes(width, WARP_GROUPS[width], STAGES[width], rings=1) + candidates
