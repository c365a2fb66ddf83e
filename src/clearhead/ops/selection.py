"""Outer selection: a slice or a list of indices along each axis, chosen independently of the other axes."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Int
from torch import Tensor

# Indices of one axis. A slice has non-negative bounds and a positive step; a list is on the CPU and in any order.
Indices = slice | Int[Tensor, " _"]
ALL = slice(None)


def take(tensor: Tensor, *indices: Indices) -> Tensor:
    """Select along each of the first axes: a view if all indices are slices, otherwise a copy; differentiable."""
    tensor = tensor[tuple(part if isinstance(part, slice) else ALL for part in indices)]
    for axis, part in enumerate(indices):
        if not isinstance(part, slice):
            tensor = tensor.index_select(axis, part.to(tensor.device))
    return tensor


def as_sequence(indices: Indices) -> Sequence[int]:
    return range(indices.start, indices.stop, indices.step) if isinstance(indices, slice) else indices.tolist()


def count(indices: Indices) -> int:
    return len(as_sequence(indices)) if isinstance(indices, slice) else indices.shape[0]


def narrow(indices: Indices, part: slice) -> Indices:
    """Return some of the indices: those at a slice of their positions."""
    if not isinstance(indices, slice):
        return indices[part]
    chosen = range(indices.start, indices.stop, indices.step)[part]
    return slice(chosen.start, chosen.stop, chosen.step)
