"""Tile sizes of the Triton kernels, fixed for each head width and dtype: nothing is tuned at the first call.

Those of half precision at widths 64, 128 and 256 are among the fastest that `benchmarks/tune_triton.py` found on an
NVIDIA H200 (benchmarks/results/triton-tiles.json), but for statistics at 256; those, the ones for float32 and those of
"decode", "pool" and "top" are guesses that work, the ones at 128 tried against a few others.
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
    queries: int
    keys: int
    warps: int
    stages: int


# by the padded width of a head, up to and including it
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
    """The table's; no taller than there are queries."""
    if is_interpreted():
        return INTERPRETER_TILE
    table = (SINGLE_PRECISION_TILES if dtype == torch.float32 else HALF_PRECISION_TILES)[kernel]
    tile = next(tile for width, tile in table.items() if padded_width(dim) <= width)
    return tile._replace(queries=min(tile.queries, padded_width(queries)))


def constants(call: AttentionCall, tile: TileConfig) -> dict[str, int]:
    """What every kernel that walks over tiles is compiled for, and how it is started."""
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
    """A matrix product takes widths of at least 16, and powers of 2."""
    return max(16, next_power_of_2(dim))


def next_power_of_2(value: int) -> int:
    """The least that is not below a number. Triton's own function, meant for kernels, takes microseconds."""
    return 1 << (value - 1).bit_length()


def block_count(length: int, size: int) -> int:
    """How many blocks of a size hold a length."""
    return -(-length // size)


def matmul_precision(dtype: torch.dtype) -> str:
    """How float32 is multiplied, by torch's own setting; other dtypes have one way."""
    if is_interpreted() and dtype == torch.bfloat16:
        return "upcast"
    return "tf32" if dtype == torch.float32 and uses_tf32() else "ieee"


def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on the CPU, as they do in tests."""
    return triton.knobs.runtime.interpret  # pyright: ignore[reportAttributeAccessIssue]
