"""Positions of queries and keys in a call, and the edges that remain without some of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from clearhead._utils.checks import describe, list_items
from clearhead.ops.masks import LoweredMask

Positions = int | slice | Sequence[int] | Tensor
MAX_RANGES = 32  # of a query; more of them take longer to read than a bool mask


def check_positions(name: str, positions: Any) -> list[int] | slice:
    """Return positions in one form: a slice, or a list of integers that may be negative.

    Raises:
        TypeError: if they are something else.
    """
    if positions is None:
        return slice(None)
    if isinstance(positions, slice):
        return positions
    indices = list_items(name, positions)
    if any(type(index) is not int for index in indices) or not indices:
        raise TypeError(f"{name} is {describe(positions)}; expected an index, a slice, or a list of indices")
    return indices


def query_rows(name: str, positions: list[int] | slice, q_len: int, kv_len: int) -> list[int]:
    """Return the rows of a call that some positions mean.

    Positions are rows of the call. In a decoding step, whose only query follows a KV cache, they are positions in the
    whole sequence, so that those of the prompt do not apply.

    Raises:
        ValueError: if the call has no such row.
    """
    if q_len == 1 < kv_len:
        return [0] if kv_len - 1 in key_indices(name, positions, kv_len, skip=True) else []
    return key_indices(name, positions, q_len)


def key_indices(name: str, positions: list[int] | slice, length: int, *, skip: bool = False) -> list[int]:
    """Return positions as sorted indices from 0.

    Args:
        name: name of the argument, for errors.
        positions: the positions.
        length: number of positions that exist.
        skip: leave out positions that do not exist, instead of raising.
    """
    if isinstance(positions, slice):
        return list(range(*positions.indices(length)))
    missing = [index for index in positions if not -length <= index < length]
    if missing and not skip:
        raise ValueError(f"{name} contains {missing[0]}; expected {-length} to {length - 1}")
    return sorted({index % length for index in positions if index not in missing})


def remaining_edges(
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]], q_len: int, kv_len: int, device: torch.device
) -> LoweredMask:
    """Return the edges that remain if each pair of rows and keys is removed: key ranges, if each row has few of them.

    Args:
        pairs: rows, and the keys that they may no longer attend to.
        q_len: number of queries.
        kv_len: number of keys.
        device: device of the result.
    """
    removed: dict[int, tuple[int, ...]] = {}  # indices of the pairs that contain a row
    for index, (rows, _) in enumerate(pairs):
        for row in rows:
            removed[row] = (*removed.get(row, ()), index)
    groups: dict[tuple[int, ...], list[int]] = {}
    for row, indices in removed.items():
        groups.setdefault(indices, []).append(row)
    remaining = {indices: _runs_without({key for i in indices for key in pairs[i][1]}, kv_len) for indices in groups}
    most = max((len(runs) for runs in remaining.values()), default=1)
    if most > MAX_RANGES:
        return _dense(pairs, q_len, kv_len, device)
    ranges = torch.full((max(most, 1), 2, 1, q_len), kv_len, dtype=torch.int32)  # empty ranges at the end
    ranges[0, 0] = 0
    for indices, rows in groups.items():
        runs = remaining[indices] + [(kv_len, kv_len)] * (ranges.shape[0] - len(remaining[indices]))
        ranges[:, :, 0, rows] = torch.tensor(runs, dtype=torch.int32)[..., None]
    return LoweredMask(ranges.to(device))


def _runs_without(keys: set[int], kv_len: int) -> list[tuple[int, int]]:
    """Return the runs of consecutive keys that remain without some keys."""
    runs, start = [], 0
    for key in sorted(keys):
        if key > start:
            runs.append((start, key))
        start = key + 1
    return [*runs, (start, kv_len)] if start < kv_len else runs


def _dense(
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]], q_len: int, kv_len: int, device: torch.device
) -> LoweredMask:
    allowed = torch.ones(q_len, kv_len, dtype=torch.bool)
    for rows, keys in pairs:
        allowed[torch.tensor(rows)[:, None], torch.tensor(keys)] = False
    return LoweredMask(dense=allowed[None, None].to(device))
