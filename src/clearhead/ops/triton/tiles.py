"""Tile sizes of the Triton kernels: those of a table if they fit into the GPU's shared memory, otherwise smaller ones.

A tile follows from the GPU's limit and from everything the kernel loads: a dense mask or a tensor bias adds a matrix to
each pipeline stage. Tiles are not autotuned at the first call.

- `HALF_PRECISION_TILES`: for widths 64, 128 and 256 among the fastest that `benchmarks/tune_triton.py` found on an H200
  (benchmarks/results/triton-tiles.json). Statistics at 256, "decode", "pool" and "top" are untuned, except that those
  for width 128 were compared with a few others.
- `MMA_TILES`, for GPUs without wgmma: untuned. They are small enough that the compiler spills at most a few registers.
- `SINGLE_PRECISION_TILES`: untuned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, TypeVar, get_args

import torch
from triton.runtime.errors import OutOfResources

from clearhead.ops.call import AttentionCall
from clearhead.ops.gpu import gpu_of
from clearhead.ops.triton.config import TileConfig, is_interpreted, padded_width

T = TypeVar("T")
Kernel = Literal[
    "forward", "decode", "backward_query", "backward_key", "backward_bias", "observe_rows", "observe_columns", "pool",
    "top", "transposed_product", "mass", "divergence", "divergence_key",
]  # fmt: skip
KERNELS: tuple[Kernel, ...] = get_args(Kernel)


# the keys are the largest padded head width of each tile
HALF_PRECISION_TILES: dict[Kernel, dict[int, TileConfig]] = {
    "forward": {64: TileConfig(128, 64, 8, 3), 128: TileConfig(128, 128, 8, 3), 256: TileConfig(128, 64, 8, 2)},
    "decode": {64: TileConfig(64, 128, 4, 2), 128: TileConfig(64, 64, 4, 2), 256: TileConfig(64, 32, 4, 2)},
    "backward_query": {64: TileConfig(128, 64, 4, 3), 128: TileConfig(128, 64, 8, 3), 256: TileConfig(128, 32, 8, 3)},
    "backward_key": {64: TileConfig(64, 64, 4, 3), 128: TileConfig(64, 64, 4, 2), 256: TileConfig(32, 64, 8, 3)},
    "backward_bias": {64: TileConfig(128, 64, 4, 1), 128: TileConfig(128, 64, 8, 1), 256: TileConfig(128, 32, 8, 1)},
    "observe_rows": {64: TileConfig(64, 128, 4, 3), 128: TileConfig(64, 128, 4, 3), 256: TileConfig(64, 64, 4, 2)},
    "observe_columns": {64: TileConfig(64, 128, 4, 3), 128: TileConfig(64, 128, 4, 3), 256: TileConfig(64, 64, 4, 2)},
    "pool": {64: TileConfig(64, 128, 4, 3), 128: TileConfig(64, 128, 4, 3), 256: TileConfig(64, 64, 4, 2)},
    "top": {64: TileConfig(64, 64, 4, 3), 128: TileConfig(64, 64, 4, 3), 256: TileConfig(64, 64, 4, 2)},
    "transposed_product": {64: TileConfig(64, 64, 4, 3), 128: TileConfig(64, 64, 4, 3), 256: TileConfig(32, 64, 8, 3)},
    "mass": {64: TileConfig(64, 64, 4, 3), 128: TileConfig(64, 64, 4, 3), 256: TileConfig(64, 32, 4, 2)},
    "divergence": {64: TileConfig(128, 64, 8, 2), 128: TileConfig(128, 64, 8, 2), 256: TileConfig(64, 32, 4, 2)},
    "divergence_key": {64: TileConfig(64, 128, 8, 2), 128: TileConfig(64, 128, 8, 2), 256: TileConfig(32, 64, 4, 2)},
}
MMA_TILES: dict[Kernel, dict[int, TileConfig]] = {
    **HALF_PRECISION_TILES,
    "forward": {64: TileConfig(128, 64, 8, 3), 128: TileConfig(128, 64, 8, 3), 256: TileConfig(64, 64, 8, 2)},
    "decode": {64: TileConfig(64, 128, 4, 2), 128: TileConfig(64, 64, 4, 2), 256: TileConfig(32, 32, 4, 2)},
    "backward_query": {64: TileConfig(128, 64, 8, 3), 128: TileConfig(128, 64, 8, 2), 256: TileConfig(64, 32, 8, 2)},
    "backward_key": {64: TileConfig(32, 64, 4, 2), 128: TileConfig(64, 64, 8, 2), 256: TileConfig(32, 32, 8, 2)},
    "transposed_product": {64: TileConfig(64, 64, 4, 2), 128: TileConfig(64, 64, 8, 2), 256: TileConfig(32, 32, 8, 2)},
    "divergence": {64: TileConfig(64, 64, 4, 2), 128: TileConfig(64, 64, 8, 2), 256: TileConfig(32, 32, 8, 2)},
    "divergence_key": {64: TileConfig(64, 64, 4, 2), 128: TileConfig(64, 64, 8, 2), 256: TileConfig(32, 32, 8, 2)},
}
SINGLE_PRECISION_TILES: dict[Kernel, dict[int, TileConfig]] = {
    "forward": {128: TileConfig(32, 32, 4, 2), 256: TileConfig(32, 16, 4, 2)},
    "decode": {128: TileConfig(16, 32, 4, 3), 256: TileConfig(16, 16, 4, 2)},
    "backward_query": {64: TileConfig(32, 32, 4, 2), 128: TileConfig(32, 32, 4, 1), 256: TileConfig(16, 16, 4, 1)},
    "backward_key": {64: TileConfig(32, 32, 4, 2), 128: TileConfig(32, 32, 4, 1), 256: TileConfig(16, 16, 4, 1)},
    "backward_bias": {128: TileConfig(32, 32, 4, 1), 256: TileConfig(16, 16, 4, 1)},
    "observe_rows": {128: TileConfig(32, 32, 4, 2), 256: TileConfig(16, 16, 4, 1)},
    "observe_columns": {128: TileConfig(32, 32, 4, 2), 256: TileConfig(16, 16, 4, 1)},
    "pool": {128: TileConfig(32, 32, 4, 2), 256: TileConfig(16, 16, 4, 1)},
    "top": {64: TileConfig(32, 64, 4, 2), 256: TileConfig(16, 64, 4, 1)},
    "transposed_product": {128: TileConfig(32, 32, 4, 2), 256: TileConfig(16, 16, 4, 1)},
    "mass": {128: TileConfig(32, 32, 4, 2), 256: TileConfig(16, 16, 4, 1)},
    "divergence": {128: TileConfig(32, 32, 4, 1), 256: TileConfig(16, 16, 4, 1)},
    "divergence_key": {128: TileConfig(32, 32, 4, 1), 256: TileConfig(16, 16, 4, 1)},
}
VALUE_KERNELS: tuple[Kernel, ...] = (
    "forward", "decode", "backward_query", "backward_key", "backward_bias", "transposed_product", "divergence",
    "divergence_key",
)  # fmt: skip
INTERPRETER_TILE = TileConfig(16, 16, 4, 1)
RESERVED_SHARED_BYTES = 2048  # barriers, and scratch space of reductions
MIN_SIZE = 16  # `tl.dot` requires it
MAX_QUERIES = 128  # in any tile
MIN_KEYS: dict[Kernel, int] = {"top": 64}  # a tile's columns are its groups of keys; with fewer, too many scores remain


class TileProblem(NamedTuple):
    """Everything that the tile of a kernel depends on."""

    kernel: Kernel
    device: torch.device
    dtype: torch.dtype
    key_width: int  # padded
    value_width: int  # padded; 0 if the kernel does not load values
    queries: int  # padded
    cell_bytes: int  # bytes that the kernel loads for each cell: of a dense mask and a tensor bias
    options: tuple[bool, ...]  # whether the call has key ranges, ALiBi, a softcap, sinks, dropout; a fused heatmap

    @classmethod
    def from_call(cls, kernel: Kernel, call: AttentionCall, queries: int, heatmap: bool = False) -> TileProblem:
        lowered, bias = call.lower(), call.tensor_bias
        return cls(
            kernel,
            call.query.device,
            call.query.dtype,
            padded_width(call.query.shape[3]),
            padded_width(call.value.shape[3]) if kernel in VALUE_KERNELS and call.value is not None else 0,
            min(padded_width(queries), MAX_QUERIES),
            (lowered.dense is not None) + (0 if bias is None else bias.element_size()),
            (
                lowered.ranges is not None,
                call.slopes is not None,
                call.softcap is not None,
                call.sinks is not None,
                call.seed is not None,
                heatmap,
            ),
        )

    def preferred(self) -> TileConfig:
        """Return the tile of the table, with no more rows than needed for the queries."""
        table = HALF_PRECISION_TILES if gpu_of(self.device).has_wgmma else MMA_TILES
        table = SINGLE_PRECISION_TILES if self.dtype == torch.float32 else table
        widest = max(self.key_width, self.value_width)
        tile = next(tile for width, tile in table[self.kernel].items() if widest <= width)
        return tile._replace(queries=min(tile.queries, self.queries))

    def shared_bytes(self, tile: TileConfig) -> int:
        """Estimate the shared memory of a program: the rows it holds, and per stage the rows and cells it loads."""
        row = self.key_width * self.dtype.itemsize
        both = row + self.value_width * self.dtype.itemsize
        if self.kernel in ("divergence", "divergence_key"):  # a mean over heads loads both queries and keys of each
            held, loaded = ((tile.queries + tile.keys) * width for width in (both - row, row))
        elif self.kernel in ("backward_key", "observe_columns", "transposed_product"):
            held, loaded = tile.keys * both, tile.queries * both
        elif self.kernel in ("backward_query", "backward_bias"):
            held, loaded = tile.queries * both, tile.keys * both
        else:
            held, loaded = tile.queries * row, tile.keys * both
        cells, buffers, scratch = tile.queries * tile.keys, tile.stages, RESERVED_SHARED_BYTES
        if not gpu_of(self.device).has_wgmma:
            buffers = max(1, tile.stages - 1)
            if self.kernel.startswith("backward") or tile.queries < 16 * tile.warps:
                scratch += cells * self.dtype.itemsize  # weights move between warps
        return held + buffers * (loaded + cells * self.cell_bytes) + scratch

    def candidates(self) -> list[TileConfig]:
        """Return the preferred tile and all smaller ones, best first: at least two stages, then large, then deep."""
        preferred = self.preferred()
        sizes = [
            (queries, keys, stages)
            for queries in _powers_of_2(MIN_SIZE, preferred.queries)
            for keys in _powers_of_2(MIN_KEYS.get(self.kernel, MIN_SIZE), preferred.keys)
            for stages in range(1, preferred.stages + 1)
        ]
        sizes.sort(key=lambda size: (size[2] > 1, size[0] * size[1], size[2], size[0]), reverse=True)
        tiles = [TileConfig(q, k, preferred.warps if q == preferred.queries else 4, stages) for q, k, stages in sizes]
        return [preferred, *(tile for tile in tiles if tile != preferred)]


def _powers_of_2(first: int, last: int) -> Iterator[int]:
    while first <= last:
        yield first
        first *= 2


_CHOSEN: dict[TileProblem, TileConfig] = {}


def tile_for(problem: TileProblem) -> TileConfig:
    """Return the tile of a kernel: the best one whose estimate fits, or the one that a failed launch led to."""
    tile = _CHOSEN.get(problem)
    if tile is None:
        limit, candidates = gpu_of(problem.device).shared_memory, problem.candidates()
        fitting = (tile for tile in candidates if problem.shared_bytes(tile) <= limit)
        tile = _CHOSEN[problem] = next(fitting, candidates[-1])
    return tile


def launch_with_tile(
    kernel: Kernel,
    call: AttentionCall,
    queries: int,
    launch: Callable[[TileConfig], T],
    *,
    heatmap: bool = False,
    tile: TileConfig | None = None,
) -> T:
    """Call a function that launches a kernel with the tile for a call, and return its result.

    If the GPU lacks resources for that tile, the next smaller one is tried, and remembered for such calls.

    Args:
        kernel: name of the kernel.
        call: attention call that the kernel computes.
        queries: number of rows to divide into tiles.
        launch: takes the tile.
        heatmap: whether the kernel also fills the bins of a heatmap.
        tile: use this tile, and do not try a smaller one.
    """
    if tile is not None or is_interpreted():
        return launch(tile or INTERPRETER_TILE)
    problem = TileProblem.from_call(kernel, call, queries, heatmap)
    while True:
        tile = tile_for(problem)
        try:
            return launch(tile)
        except OutOfResources:
            needed = problem.shared_bytes(tile), tile.stages
            smaller = (other for other in problem.candidates() if (problem.shared_bytes(other), other.stages) < needed)
            next_tile = next(smaller, None)
            if next_tile is None:
                raise
            _CHOSEN[problem] = next_tile
