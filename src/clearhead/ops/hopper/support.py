"""Calls that the kernels for Hopper GPUs support, and the failures after which Triton takes all calls."""

from __future__ import annotations

import functools
import math
import warnings

import torch

from clearhead.ops.call import AttentionCall
from clearhead.ops.gpu import gpu_of
from clearhead.ops.hopper.driver import DriverError, UnavailableError, can_map, is_installed

CAPABILITY = (9, 0)
DEVICE_TYPE = "cuda"
DTYPES = {torch.bfloat16: "bf16", torch.float16: "f16"}
WIDTHS = (64, 128)
STREAMED_BYTES = 2**24  # that all thread blocks read again and again: less than half of the L2 cache

_FAILURES: list[str] = []  # why NVRTC or the driver refused a kernel; no kernel is tried again


def unsupported_reasons(call: AttentionCall, min_cells: int) -> list[str]:
    """Return why no kernel for Hopper GPUs can take a call, or why Triton's is as fast; empty if one can.

    Args:
        call: attention call.
        min_cells: number of cells of the matrix from which on the kernel is used instead of Triton's.
    """
    gpu = gpu_of(call.query.device) if call.query.device.type == DEVICE_TYPE else None
    if gpu is None or gpu.capability != CAPABILITY or not gpu.has_wgmma:
        return ["the GPU is not an NVIDIA GPU of compute capability 9.0"]
    if not is_installed():
        return ["cuda.bindings is not installed"]
    if _FAILURES:
        return _FAILURES[:1]
    # the first reason is enough: other checks take longer, and small calls make them at every call
    cells = math.prod(call.shape)
    if cells < min_cells:
        return [f"the matrix has {cells} cells; expected at least {min_cells}"]
    if call.query.dtype not in DTYPES:
        return [f"dtype {call.query.dtype} is not bfloat16 or float16"]
    if call.query.shape[3] not in WIDTHS:
        return [f"key_dim {call.query.shape[3]} is not 64 or 128"]
    options = {
        "softcap": call.softcap,
        "bias": call.tensor_bias,
        "ALiBi": call.slopes,
        "dense mask": call.lower().dense,
    }
    reasons = [f"{name} is not supported" for name, option in options.items() if option is not None]
    reasons += [
        f"address or strides of {name} are not positive multiples of 16 bytes"
        for name, tensor in (("query", call.query), ("key", call.key))
        if not can_map(tensor)
    ]
    return reasons


def remember_failure(error: DriverError) -> None:
    """Warn if the kernels cannot run on this machine, and leave all later calls to Triton.

    Other errors, such as a lack of memory, leave only this call to Triton.
    """
    if not isinstance(error, UnavailableError):
        return
    _FAILURES.append(str(error))
    warnings.warn(f"attention runs in Triton, because a kernel for Hopper GPUs failed: {error}", stacklevel=2)


def heads_in_flight(head_bytes: int, heads: int, least: int = 1) -> int:
    """Return how many heads to process at the same time, so that what thread blocks read stays in the L2 cache.

    Args:
        head_bytes: bytes that every thread block of a head reads.
        heads: number of all heads, which the result does not exceed.
        least: result if fewer fit into the cache.
    """
    return min(heads, max(least, STREAMED_BYTES // head_bytes))


@functools.cache
def processor_count(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count
