"""Output and log-sum-exp of attention on Hopper GPUs, by the kernel in `forward.cu`."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from clearhead.ops.call import AttentionCall
from clearhead.ops.hopper import query_blocks, support
from clearhead.ops.hopper.driver import can_map, compiled_kernel, data_pointer, row_map
from clearhead.ops.masks import Causal

WARP_GROUPS = {64: 3, 128: 2}  # by width: more would not have enough registers
STAGES = {64: 4, 128: 2}
# matrices from which on the kernel is faster than Triton's, by width (benchmarks/forward_sizes.py)
MIN_CELLS = {64: 2**31, 128: 2**30}


class Problem(ctypes.Structure):
    """Arguments of the kernel; the fields are those of `Problem` in forward.cu."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("output", "lse", "ranges", "sinks", "next_item")),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_int) for name in query_blocks.FIELDS),
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
    reasons += query_blocks.unsupported_reasons(call)
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
    blocks = query_blocks.block_count(call, WARP_GROUPS[call.query.shape[3]])
    return blocks >= support.processor_count(call.query.device)


def forward(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """Return output and log-sum-exp of a call for which there are no `unsupported_reasons`, or raise a DriverError."""
    from clearhead.ops.triton.logits import LogitParams  # imports Triton, which dispatch does not require

    query, value = call.query, call.value
    assert value is not None
    batch, heads, q_len, width = query.shape
    output = query.new_empty((batch, heads, q_len, width))
    lse = query.new_empty((batch, heads, q_len), dtype=torch.float32)
    logit_params = LogitParams.from_call(call)
    sinks = None if logit_params.sinks is None else logit_params.sinks.float()
    next_item = torch.zeros(1, dtype=torch.int32, device=query.device)
    problem = Problem(
        output.data_ptr(),
        lse.data_ptr(),
        data_pointer(logit_params.ranges),
        data_pointer(sinks),
        next_item.data_ptr(),
        logit_params.scale,
        *query_blocks.fields(call, logit_params, streamed_tensors=2),
    )
    groups = WARP_GROUPS[width]
    options = (
        ("DTYPE", support.DTYPES[query.dtype]),
        ("HEAD_DIM", width),
        ("WARP_GROUPS", groups),
        ("STAGES", STAGES[width]),
    )
    tile = query_blocks.TILE_KEYS
    maps = row_map(query, query_blocks.WARP_GROUP_ROWS), row_map(call.key, tile), row_map(value, tile)
    query_blocks.launch(compiled_kernel("forward", options), call, groups, shared_bytes(width), (*maps, problem))
    return output, lse


def shared_bytes(width: int) -> int:
    """Return the dynamic shared memory of a thread block: queries, rings of keys and values, and barriers."""
    return query_blocks.shared_bytes(width, WARP_GROUPS[width], STAGES[width], rings=2)
