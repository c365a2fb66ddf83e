"""Tile schedule: the query blocks of a matrix, and the key tiles of each block that the key ranges require.

Query heads are folded over the key heads they read, `[batch, kv_heads, group, rows]`, so that keys are not repeated
for grouped heads. A block is a set of heads and a band of rows. Its tiles cover the keys. Tiles that no row of the
band may attend to are skipped.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.ops import key_ranges as key_ranges
from clearhead.ops.key_ranges import KeyRanges

# rows and keys of a tile: larger ones leave the CPU cache, smaller ones take more calls of torch
TILE = (512, 512)
NARROW_TILE = (256, 1024)  # as many cells, for rows with few keys: taller tiles have more masked cells
CUDA_CELLS_PER_STEP = 2**25  # CUDA tiles need not fit into a CPU cache
FULL_TILE_ALIGNMENT = 64  # full tiles begin and end at multiples of this, for fast matrix products
MAX_CACHED_TILE_MASKS = 8  # per band of rows: masks of partial tiles, cached for the next heads

FoldedShape = tuple[int, int, int, int, int]  # batch, kv_heads, group, q_len, kv_len


class QueryBlock(NamedTuple):
    """Set of heads and a band of rows: slices of `[batch, kv_heads, group, q_len]`."""

    batch: slice
    kv_heads: slice
    group: slice
    rows: slice


class KeyTile(NamedTuple):
    """Range of keys of a block. `mask` is added to the scores; None if every row may attend to every key."""

    keys: slice
    mask: Float[Tensor, "batch 1 1 rows keys"] | None


def iterate_tiles(
    shape: FoldedShape, ranges: KeyRanges | None, dtype: torch.dtype, device: torch.device
) -> Iterator[tuple[QueryBlock, Iterable[KeyTile]]]:
    """Iterate over the blocks and their tiles. Heads are the inner loop, so that they share the masks of a band."""
    batch, kv_heads, group, q_len, kv_len = shape
    step = _steps(shape, ranges, device)
    bands = None if ranges is None or 0 in shape else _Bands(ranges, step.rows, kv_len)
    for sequences in split_range(batch, step.batch):
        for rows in split_range(q_len, step.rows):
            if bands is None or ranges is None:
                tiles = [KeyTile(keys, None) for keys in split_range(kv_len, step.keys)]
            else:
                band_ranges = ranges if ranges.shape[2] == 1 else ranges[:, :, sequences]
                tiles = _MaskedTiles(bands.pieces(sequences, rows, step.keys), band_ranges[..., rows], dtype)
            for heads in split_range(kv_heads, step.kv_heads):
                for members in split_range(group, step.group):
                    yield QueryBlock(sequences, heads, members, rows), tiles


def max_tile_cells(shape: FoldedShape, device: torch.device) -> int:
    """Return the maximum number of cells in a tile, the size of scratch memory."""
    return min(math.prod(shape), _cells_per_step(device))


def _cells_per_step(device: torch.device) -> int:
    return CUDA_CELLS_PER_STEP if device.type == "cuda" else torch.get_num_threads() * math.prod(TILE)


def split_range(length: int, size: int) -> list[slice]:
    """Split `range(length)` into slices of at most `size`."""
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


class _Steps(NamedTuple):
    batch: int
    kv_heads: int
    group: int
    rows: int
    keys: int


def _steps(shape: FoldedShape, ranges: KeyRanges | None, device: torch.device) -> _Steps:
    """Return the step along each axis: a tile per thread, and more heads or sequences if tiles are small."""
    batch, kv_heads, group, q_len, kv_len = (max(1, size) for size in shape)
    most_rows, most_keys = NARROW_TILE if ranges is not None and _is_narrow(ranges, kv_len) else TILE
    rows = min(q_len, most_rows)
    keys = min(kv_len, most_rows * most_keys // rows)
    tiles = max(1, _cells_per_step(device) // (rows * keys))
    step_group = min(group, tiles)
    step_heads = min(kv_heads, tiles // step_group) if step_group == group else 1
    step_batch = min(batch, tiles // (group * kv_heads)) if step_heads == kv_heads and step_group == group else 1
    return _Steps(step_batch, step_heads, step_group, rows, keys)


def _is_narrow(ranges: KeyRanges, kv_len: int) -> bool:
    """Return whether rows have fewer keys on average than a tile has rows."""
    if kv_len < TILE[0] or ranges.device.type != "cpu":  # on a GPU, counting them would synchronize
        return True
    keys = (ranges[:, 1] - ranges[:, 0]).clamp(min=0).sum(dim=0)  # [batch, q_len]
    return bool(keys.float().mean() < TILE[0])


class _MaskedTiles:
    """Tiles of one band of rows. Masks are computed on demand, and the first few are cached."""

    def __init__(self, pieces: list[tuple[slice, bool]], ranges: KeyRanges, dtype: torch.dtype) -> None:
        self.pieces, self.ranges, self.dtype = pieces, ranges, dtype
        self.kept: dict[int, Tensor] = {}

    def __iter__(self) -> Iterator[KeyTile]:
        for keys, full in self.pieces:
            yield KeyTile(keys, None if full else self._mask(keys))

    def _mask(self, keys: slice) -> Tensor:
        mask = self.kept.get(keys.start)
        if mask is None:
            positions = torch.arange(keys.start, keys.stop, device=self.ranges.device, dtype=torch.int32)
            allowed = key_ranges.contains(self.ranges, positions)[:, None, None]  # [batch, 1, 1, rows, keys]
            mask = torch.where(allowed, 0.0, -torch.inf).to(self.dtype)
            if len(self.kept) < MAX_CACHED_TILE_MASKS:
                self.kept[keys.start] = mask
        return mask


class _Bands:
    """Smallest and largest ends of the ranges in each band of rows, which determine the needed and full tiles."""

    def __init__(self, ranges: KeyRanges, rows: int, kv_len: int) -> None:
        empty = ranges[:, 0] >= ranges[:, 1]
        first = ranges[:, 0].masked_fill(empty, kv_len)
        last = ranges[:, 1].masked_fill(empty, 0)
        missing = -ranges.shape[3] % rows  # the last band is padded with copies of the last row
        first, last = (
            torch.cat([ends, ends[..., -1:].expand(-1, -1, missing)], dim=-1).unflatten(-1, (-1, rows))
            for ends in (first, last)
        )
        self.rows = rows
        self.broadcasts = ranges.shape[2] == 1  # over the batch
        # [ranges, 4, batch, bands], copied to the CPU in one transfer
        extremes = torch.stack([first.amin(-1), first.amax(-1), last.amin(-1), last.amax(-1)], dim=1)
        self.extremes: list[list[list[list[int]]]] = extremes.tolist()

    def pieces(self, batch: slice, rows: slice, size: int) -> list[tuple[slice, bool]]:
        """Return the needed keys in order, in pieces of at most `size`, and whether each piece is full.

        A piece is full if every row may attend to all of its keys.
        """
        band = rows.start // self.rows
        sequences = [0] if self.broadcasts else range(batch.start, batch.stop)
        needed, full = [], []
        for least_first, most_first, least_last, most_last in self.extremes:
            needed.append((min(least_first[b][band] for b in sequences), max(most_last[b][band] for b in sequences)))
            start = max(most_first[b][band] for b in sequences)
            end = min(least_last[b][band] for b in sequences)
            full.append(
                (
                    -(-start // FULL_TILE_ALIGNMENT) * FULL_TILE_ALIGNMENT,
                    end // FULL_TILE_ALIGNMENT * FULL_TILE_ALIGNMENT,
                )
            )
        full = [(start, end) for start, end in full if start < end]
        pieces = []
        for start, end in _merged(needed):
            edges = sorted({start, end} | {edge for span in full for edge in span if start < edge < end})
            for low, high in itertools.pairwise(edges):
                whole = any(first <= low and high <= last for first, last in full)
                pieces += [(slice(low + part.start, low + part.stop), whole) for part in split_range(high - low, size)]
        return pieces


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge spans that overlap or touch, and drop empty ones."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
