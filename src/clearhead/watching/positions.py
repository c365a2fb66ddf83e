"""Positions of queries and keys in a call, and the edges that remain without some of them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from clearhead._utils.checks import describe, list_items
from clearhead.ops.masks import LoweredMask

Positions = int | slice | Sequence[int] | Tensor
MAX_RANGES = 32  # of a query; more of them take longer to read than a bool mask


class ChosenPositions:
    """Positions of an argument, and those of them that were in a call.

    Attributes:
        name: name of the argument, for errors.
    """

    def __init__(self, name: str, positions: Any) -> None:
        """Check positions: an index, a slice, indices, or None for all.

        Raises:
            TypeError: if they are something else.
        """
        self.name = name
        self._given: list[int] | slice = slice(None)
        self._applied: set[int] = set()
        if isinstance(positions, slice):
            self._given = positions
        elif positions is not None:
            self._given = _indices(name, positions)

    def within(self, first: int, end: int) -> list[int]:
        """Return the positions from `first` to `end`, relative to `first`, in the order given.

        Negative positions count from `end`. Others are left out; `missing` returns those that were in no call.
        """
        if isinstance(self._given, slice):
            return [position - first for position in range(*self._given.indices(end)) if position >= first]
        chosen = {index: index + end if index < 0 else index for index in self._given}
        inside = {index: position for index, position in chosen.items() if first <= position < end}
        self._applied.update(inside)
        return [*dict.fromkeys(position - first for position in inside.values())]

    def missing(self) -> int | None:
        """Return an index that was not in any call; None if all were."""
        if isinstance(self._given, slice):
            return None
        return next((index for index in self._given if index not in self._applied), None)

    @property
    def key(self) -> tuple[int | None, ...]:
        """Hashable form of the positions."""
        given = self._given
        return (None, given.start, given.stop, given.step) if isinstance(given, slice) else tuple(given)


def _indices(name: str, positions: Any) -> list[int]:
    items = list_items(name, positions)
    try:
        if items and not any(isinstance(item, bool) for item in items):
            return [operator.index(item) for item in items]
    except (TypeError, RuntimeError):  # not an integer, or an array with several
        pass
    raise TypeError(f"{name} is {describe(positions)}; expected an index, a slice, or a list of indices")


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
