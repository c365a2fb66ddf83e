"""Tile sizes of the Triton kernels, fixed for each head width and dtype, without autotuning at the first call.

The half-precision sizes for widths 64, 128 and 256 are among the fastest that `benchmarks/tune_triton.py` found on an
NVIDIA H200 (benchmarks/results/triton-tiles.json), except for statistics at 256. Those, all float32 sizes, and the
sizes of "decode", "pool" and "top" are untuned, except that those for width 128 were compared with a few others.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import triton

from clearhead.ops._precision import uses_tf32
from clearhead.ops.call import AttentionCall

Kernel = Literal[
    "forward", "decode", "backward_query", "backward_key", "observe_rows", "observe_columns", "pool", "top"
]


class TileConfig(NamedTuple):
    """Tile size and launch options of a kernel."""

    queries: int
    keys: int
    warps: int
    stages: int


# the keys are the largest padded head width of each tile
HALF_PRECISION_TILES: dict[Kernel, dict[int, TileConfig]] = {
    "forward": {64: TileConfig(128, 64, 8, 3), 128: TileConfig(128, 128, 8, 3), 256: TileConfig(128, 64, 8, 2)},
    "decode": {64: TileConfig(64, 128, 4, 2), 128: TileConfig(64, 64, 4, 2), 256: TileConfig(64, 32, 4, 2)},
    "backward_query": {64: TileConfig(128, 64, 4, 3), 128: TileConfig(128, 64, 8, 3), 256: TileConfig(128, 32, 8, 3)},
    "backward_key": {64: TileConfig(64, 64, 4, 3), 128: TileConfig(64, 64, 4, 2), 256: TileConfig(32, 64, 8, 3)},
    "observe_rows": {64: TileConfig(64, 128, 4, 3), 128: TileConfig(64, 128, 4, 3), 256: TileConfig(64, 64, 4, 2)},
    "observe_columns": {64: TileConfig(64, 128, 4, 3), 128: TileConfig(64, 128, 4, 3), 256: TileConfig(64, 64, 4, 2)},
    "pool": {64: TileConfig(64, 128, 4, 3), 128: TileConfig(64, 128, 4, 3), 256: TileConfig(64, 64, 4, 2)},
    "top": {64: TileConfig(64, 64, 4, 3), 128: TileConfig(64, 64, 4, 3), 256: TileConfig(64, 64, 4, 2)},
}
SINGLE_PRECISION_TILES: dict[Kernel, dict[int, TileConfig]] = {
    "forward": {128: TileConfig(64, 32, 4, 2), 256: TileConfig(32, 16, 4, 2)},
    "decode": {128: TileConfig(16, 32, 4, 3), 256: TileConfig(16, 16, 4, 2)},
    "backward_query": {64: TileConfig(32, 32, 4, 2), 128: TileConfig(32, 32, 4, 1), 256: TileConfig(16, 16, 4, 1)},
    "backward_key": {64: TileConfig(32, 32, 4, 2), 128: TileConfig(32, 32, 4, 1), 256: TileConfig(16, 16, 4, 1)},
    "observe_rows": {128: TileConfig(32, 32, 4, 2), 256: TileConfig(16, 16, 4, 1)},
    "observe_columns": {128: TileConfig(32, 32, 4, 2), 256: TileConfig(16, 16, 4, 1)},
    "pool": {128: TileConfig(32, 32, 4, 2), 256: TileConfig(16, 16, 4, 1)},
    "top": {64: TileConfig(32, 64, 4, 2), 256: TileConfig(16, 64, 4, 1)},
}
INTERPRETER_TILE = TileConfig(16, 16, 4, 1)


def tile_for(kernel: Kernel, dtype: torch.dtype, dim: int, queries: int) -> TileConfig:
    """Return the tile of a kernel from the tables, with no more rows than needed for the queries."""
    if is_interpreted():
        return INTERPRETER_TILE
    table = (SINGLE_PRECISION_TILES if dtype == torch.float32 else HALF_PRECISION_TILES)[kernel]
    tile = next(tile for width, tile in table.items() if padded_width(dim) <= width)
    return tile._replace(queries=min(tile.queries, padded_width(queries)))


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
    if is_interpreted() and dtype == torch.bfloat16:
        return "upcast"
    return "tf32" if dtype == torch.float32 and uses_tf32() else "ieee"


def is_interpreted() -> bool:
    """Return whether kernels run in Triton's interpreter on the CPU, as in tests."""
    return triton.knobs.runtime.interpret  # pyright: ignore[reportAttributeAccessIssue]
