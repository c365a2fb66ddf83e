"""Tile sizes of the Triton kernels, fixed for each head width and dtype: nothing is tuned at the first call.

Those of half precision at widths 64, 128 and 256 are among the fastest that `benchmarks/tune_triton.py` found on an
NVIDIA H200 (benchmarks/results/triton-tiles.json), but for statistics at 256; those, the ones for float32 and those of
"decode", "pool" and "top" are guesses that work, the ones at 128 tried against a few others.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import triton

from clearhead.ops._custom_op import Inputs
from clearhead.ops._precision import tf32

Kernel = Literal[
    "forward", "decode", "backward_query", "backward_key", "observe_rows", "observe_columns", "pool", "top"
]


class Tile(NamedTuple):
    queries: int
    keys: int
    warps: int
    stages: int


# by the padded width of a head, up to and including it
HALF: dict[Kernel, dict[int, Tile]] = {
    "forward": {64: Tile(128, 64, 8, 3), 128: Tile(128, 128, 8, 3), 256: Tile(128, 64, 8, 2)},
    "decode": {64: Tile(64, 128, 4, 2), 128: Tile(64, 64, 4, 2), 256: Tile(64, 32, 4, 2)},
    "backward_query": {64: Tile(128, 64, 4, 3), 128: Tile(128, 64, 8, 3), 256: Tile(128, 32, 8, 3)},
    "backward_key": {64: Tile(64, 64, 4, 3), 128: Tile(64, 64, 4, 2), 256: Tile(32, 64, 8, 3)},
    "observe_rows": {64: Tile(64, 128, 4, 3), 128: Tile(64, 128, 4, 3), 256: Tile(64, 64, 4, 2)},
    "observe_columns": {64: Tile(64, 128, 4, 3), 128: Tile(64, 128, 4, 3), 256: Tile(64, 64, 4, 2)},
    "pool": {64: Tile(64, 128, 4, 3), 128: Tile(64, 128, 4, 3), 256: Tile(64, 64, 4, 2)},
    "top": {64: Tile(64, 64, 4, 3), 128: Tile(64, 64, 4, 3), 256: Tile(64, 64, 4, 2)},
}
SINGLE: dict[Kernel, dict[int, Tile]] = {
    "forward": {128: Tile(64, 32, 4, 2), 256: Tile(32, 16, 4, 2)},
    "decode": {128: Tile(16, 32, 4, 3), 256: Tile(16, 16, 4, 2)},
    "backward_query": {64: Tile(32, 32, 4, 2), 128: Tile(32, 32, 4, 1), 256: Tile(16, 16, 4, 1)},
    "backward_key": {64: Tile(32, 32, 4, 2), 128: Tile(32, 32, 4, 1), 256: Tile(16, 16, 4, 1)},
    "observe_rows": {128: Tile(32, 32, 4, 2), 256: Tile(16, 16, 4, 1)},
    "observe_columns": {128: Tile(32, 32, 4, 2), 256: Tile(16, 16, 4, 1)},
    "pool": {128: Tile(32, 32, 4, 2), 256: Tile(16, 16, 4, 1)},
    "top": {64: Tile(32, 64, 4, 2), 256: Tile(16, 64, 4, 1)},
}
INTERPRETED = Tile(16, 16, 4, 1)


def tile_for(kernel: Kernel, dtype: torch.dtype, dim: int, queries: int) -> Tile:
    """The table's; no taller than there are queries."""
    if interpreted():
        return INTERPRETED
    table = (SINGLE if dtype == torch.float32 else HALF)[kernel]
    tile = next(tile for width, tile in table.items() if padded(dim) <= width)
    return tile._replace(queries=min(tile.queries, padded(queries)))


def constants(inputs: Inputs, tile: Tile) -> dict[str, int]:
    """What every kernel that walks over tiles is compiled for, and how it is started."""
    return {
        "BLOCK_Q": tile.queries,
        "BLOCK_K": tile.keys,
        "BLOCK_D": padded(inputs.query.shape[3]),
        "RANGES": inputs.range_count,
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }


def padded(dim: int) -> int:
    """A matrix product takes widths of at least 16, and powers of 2."""
    return max(16, power_of_2(dim))


def power_of_2(number: int) -> int:
    """The least that is not below a number. Triton's own function, meant for kernels, takes microseconds."""
    return 1 << (number - 1).bit_length()


def blocks_of(length: int, size: int) -> int:
    """How many blocks of a size hold a length."""
    return -(-length // size)


def precision(dtype: torch.dtype) -> str:
    """How float32 is multiplied, by torch's own setting; other dtypes have one way."""
    if interpreted() and dtype == torch.bfloat16:
        return "upcast"
    return "tf32" if dtype == torch.float32 and tf32() else "ieee"


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on the CPU, as they do in tests."""
    return triton.knobs.runtime.interpret  # pyright: ignore[reportAttributeAccessIssue]
