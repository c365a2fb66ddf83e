"""Output and log-sum-exp of attention on Hopper GPUs, by the kernel in `forward.cu`."""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from clearhead.ops.call import AttentionCall
from clearhead.ops.hopper import support
from clearhead.ops.hopper.driver import can_map, compiled_kernel, data_pointer, row_map
from clearhead.ops.masks import Causal

TILE_KEYS, WARP_GROUP_ROWS, WARP_GROUP_THREADS = 128, 64, 128
WARP_GROUPS = {64: 3, 128: 2}  # by width: more would not have enough registers
STAGES = {64: 4, 128: 2}
ITEMS = 2  # blocks of queries in shared memory
MAX_RANGES = 8
# matrices from which on the kernel is faster than Triton's, by width (benchmarks/forward_sizes.py)
MIN_CELLS = {64: 2**31, 128: 2**30}


class Problem(ctypes.Structure):
    """Arguments of the kernel; the fields are those of `Problem` in forward.cu."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("output", "lse", "ranges", "sinks", "next_item")),
        ("scale", ctypes.c_float),
        *(
            (name, ctypes.c_int)
            for name in ("heads", "group", "batches", "q_len", "kv_len", "range_count", "range_batches", "bundle")
        ),
    ]


def unsupported_reasons(call: AttentionCall) -> list[str]:
    """Return why the kernel cannot take a call; empty if it can."""
    reasons = support.unsupported_reasons(call, MIN_CELLS.get(call.query.shape[3], 0))
    if reasons or call.value is None:
        return reasons or ["there are no values"]
    if call.value.shape[3] != call.key.shape[3]:
        reasons.append(f"value_dim {call.value.shape[3]} is not key_dim {call.key.shape[3]}")
    if call.dropout:
        reasons.append("dropout is not supported")
    ranges = call.lower().ranges
    if ranges is not None and ranges.shape[0] > MAX_RANGES:
        reasons.append(f"a query has up to {ranges.shape[0]} ranges of keys; expected at most {MAX_RANGES}")
    if not can_map(call.value):
        reasons.append("address or strides of value are not positive multiples of 16 bytes")
    return reasons


def is_faster_than_cudnn(call: AttentionCall) -> bool:
    """Return whether the kernel takes a call that cuDNN takes too, and is as fast or faster.

    From benchmarks/forward_sizes.py, and for longer plain calls from benchmarks/results/gpu-hopper-variants.md.

    Return False if a gradient is required, because cuDNN's backward pass is faster, and if there are fewer blocks of
    queries than multiprocessors.
    """
    supported = call.mask is None or isinstance(call.mask, Causal)
    if not supported or call.requires_grad() or unsupported_reasons(call):
        return False
    return _item_count(call) >= support.processor_count(call.query.device)


def forward(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """Return output and log-sum-exp of a call for which there are no `unsupported_reasons`, or raise a DriverError."""
    from clearhead.ops.triton.logits import LogitParams  # imports Triton, which dispatch does not require

    query, value = call.query, call.value
    assert value is not None
    batch, heads, q_len, width = query.shape
    output = query.new_empty((batch, heads, q_len, width))
    lse = query.new_empty((batch, heads, q_len), dtype=torch.float32)
    logit_params = LogitParams.from_call(call)
    ranges, sinks = logit_params.ranges, logit_params.sinks
    sinks = None if sinks is None else sinks.float()
    next_item = torch.zeros(1, dtype=torch.int32, device=query.device)
    row_bytes = 2 * width
    problem = Problem(
        output.data_ptr(),
        lse.data_ptr(),
        data_pointer(ranges),
        data_pointer(sinks),
        next_item.data_ptr(),
        logit_params.scale,
        heads,
        logit_params.group,
        batch,
        q_len,
        call.key.shape[2],
        0 if ranges is None else ranges.shape[0],
        logit_params.range_batches or 1,
        support.heads_in_flight(2 * call.key.shape[2] * row_bytes, call.key.shape[1] * batch) * logit_params.group,
    )
    groups = WARP_GROUPS[width]
    options = (
        ("DTYPE", support.DTYPES[query.dtype]),
        ("HEAD_DIM", width),
        ("WARP_GROUPS", groups),
        ("STAGES", STAGES[width]),
    )
    maps = row_map(query, WARP_GROUP_ROWS), row_map(call.key, TILE_KEYS), row_map(value, TILE_KEYS)
    blocks = min(_item_count(call), support.processor_count(query.device))
    compiled_kernel("forward", options).launch(
        blocks, WARP_GROUP_THREADS * (groups + 1), shared_bytes(width), (*maps, problem)
    )
    return output, lse


def _item_count(call: AttentionCall) -> int:
    """Return the number of blocks of queries that the thread blocks share."""
    batch, heads, q_len, width = call.query.shape
    return math.ceil(q_len / (WARP_GROUPS[width] * WARP_GROUP_ROWS)) * heads * batch


def shared_bytes(width: int) -> int:
    """Return the dynamic shared memory of a thread block: queries, rings of keys and values, and barriers."""
    rows = ITEMS * WARP_GROUPS[width] * WARP_GROUP_ROWS + 2 * STAGES[width] * TILE_KEYS
    return rows * 2 * width + 8 * (4 * STAGES[width] + 2 * ITEMS)
