"""Launch constants of the Triton kernels."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

from clearhead.ops._precision import uses_tf32
from clearhead.ops.call import AttentionCall

_INTERPRETED: bool = triton.knobs.runtime.interpret  # pyright: ignore  # Triton reads it when it decorates a kernel


class TileConfig(NamedTuple):
    """Tile size and launch options of a kernel."""

    queries: int
    keys: int
    warps: int
    stages: int

    def __str__(self) -> str:
        return f"{self.queries} × {self.keys}, {self.warps} warps, {self.stages} stages"


def constants(call: AttentionCall, tile: TileConfig) -> dict[str, int]:
    """Return the compile-time constants and launch options of every kernel that loops over tiles."""
    ranges = call.ranges
    return {
        "BLOCK_Q": tile.queries,
        "BLOCK_K": tile.keys,
        "BLOCK_D": padded_width(call.query.shape[3]),
        "RANGES": 0 if ranges is None else ranges.shape[0],
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }


def value_constants(call: AttentionCall, tile: TileConfig) -> dict[str, int | str]:
    """Return the compile-time constants and launch options of a kernel that also loads values."""
    assert call.value is not None
    width, precision = padded_width(call.value.shape[3]), matmul_precision(call.query.dtype)
    return {"BLOCK_V": width, "PRECISION": precision, **constants(call, tile)}


def padded_width(dim: int) -> int:
    """Return the next width that `tl.dot` supports: a power of 2, at least 16."""
    return max(16, next_power_of_2(dim))


def next_power_of_2(value: int) -> int:
    """Return the smallest power of 2 not below a number. Triton's function, made for kernels, takes microseconds."""
    return 1 << (value - 1).bit_length()


def block_count(length: int, size: int) -> int:
    """Return the number of blocks of a size that cover a length."""
    return -(-length // size)


def matmul_precision(dtype: torch.dtype) -> str:
    """Return the precision of matrix products for `dot`. For float32 it follows torch's TF32 setting."""
    if dtype == torch.bfloat16 and is_interpreted():
        return "upcast"
    return "tf32" if dtype == torch.float32 and uses_tf32() else "ieee"


def is_interpreted() -> bool:
    """Return whether kernels run in Triton's interpreter on the CPU, as in tests."""
    return _INTERPRETED
