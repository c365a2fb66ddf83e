"""Lookup of any index of a lazy matrix, computed from blocks or from single cells.

Every way computes a block of four axes, and torch indexes it. So the axes of the result are in torch's order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.ops.selection import ALL, Indices, as_sequence
from clearhead.weights.cells import MAX_CELLS, refuse_above
from clearhead.weights.gather import CELLS_PER_STEP
from clearhead.weights.indexing import AXIS_NAMES, Index, Selection, parse_index

Axes = list[int | slice | Tensor]
Cells = Callable[[Int[Tensor, "4 count"]], Float[Tensor, " count"]]


class Source(Protocol):
    """Matrix of four axes that computes blocks and single cells."""

    @property
    def shape(self) -> torch.Size: ...

    @property
    def device(self) -> torch.device: ...

    def _block(self, selection: Selection) -> Float[Tensor, "batch heads rows keys"]:
        """Return an outer selection."""
        ...

    def _cells(self) -> Cells:
        """Return a function that computes single cells."""
        ...


def lookup(source: Source, index: object, *, names: Sequence[str] = AXIS_NAMES, limit: int = MAX_CELLS) -> Tensor:
    """Return what torch returns for an index of the dense matrix; differentiable.

    Memory is proportional to the size of the result. If the lists of an index are scattered, their outer selection is
    larger, so each head or each cell is computed separately.

    Args:
        source: the matrix.
        index: what torch's indexing takes, except Python's bools and negative steps.
        names: names of the axes for errors.
        limit: raise an error if the result has more cells.
    """
    parsed = parse_index(index, source.shape, names)
    refuse_above(limit, parsed.lengths)
    selection, axes = _outer(parsed)
    if math.prod(selection.lengths) <= max(2 * math.prod(parsed.lengths), CELLS_PER_STEP):
        block = source._block(selection)
    elif all(isinstance(item, Tensor) for item in parsed.axes[2:]):
        block, axes = _by_cells(source, parsed)
    else:
        block, axes = _by_head(source, parsed)
    return parsed.applied_to(block, axes)


def _outer(index: Index) -> tuple[Selection, Axes]:
    """Return the smallest outer selection that contains an index, and the items that index it."""
    lists = [item for item in index.axes if isinstance(item, Tensor)]
    is_outer = len(lists) == 1 and lists[0].ndim == 1
    selected: list[int | slice | Tensor] = []
    axes: Axes = []
    for item in index.axes:
        if isinstance(item, Tensor) and not is_outer:
            distinct, position = item.unique(return_inverse=True)
            selected.append(distinct)
            axes.append(position)
        else:
            selected.append(item)
            axes.append(0 if isinstance(item, int) else ALL)
    return Selection(*map(_indices, selected)), axes


def _by_head(source: Source, index: Index) -> tuple[Tensor, Axes]:
    """Compute a block for each sequence and head in the lists, which may also have rows or keys, but not both.

    The blocks are joined along the axis of the last list.
    """
    points = _points(index)
    *outer, last = points
    distinct, group = torch.stack([points[axis] for axis in outer]).unique(dim=1, return_inverse=True)
    position, total = torch.empty_like(group), 0
    blocks: list[Tensor] = []
    for fixed, members in zip(distinct.T.tolist(), group.argsort().split(group.bincount().tolist()), strict=True):
        listed, inverse = points[last][members].unique(return_inverse=True)
        chosen = {**dict(zip(outer, fixed, strict=True)), last: listed}
        items = (chosen.get(axis, item) for axis, item in enumerate(index.axes))
        blocks.append(source._block(Selection(*map(_indices, items))))
        position[members] = total + inverse
        total += len(listed)
    return torch.cat(blocks, dim=last), _along(index, last, position)


def _by_cells(source: Source, index: Index) -> tuple[Tensor, Axes]:
    """Compute single cells if rows and keys are lists. The cells are joined along the axis of keys."""
    grids = {axis: cells.view(1, 1, -1) for axis, cells in _points(index).items()}
    for axis, shape in enumerate([(-1, 1, 1), (1, -1, 1)]):
        if axis not in grids:  # sequences or heads of a slice
            grids[axis] = torch.tensor(as_sequence(_indices(index.axes[axis])), device="cpu").view(shape)
    grids = torch.broadcast_tensors(*(grids[axis].to(source.device) for axis in range(4)))
    batch, heads, count = grids[0].shape
    compute = source._cells()
    parts: list[Tensor] = []
    for strip in zip(*(grid.split(max(1, CELLS_PER_STEP // (batch * heads)), dim=2) for grid in grids), strict=True):
        parts.append(compute(torch.stack(strip).flatten(1)).view(batch, heads, 1, -1))
    return torch.cat(parts, dim=3), _along(index, 3, torch.arange(count, device="cpu"))


def _points(index: Index) -> dict[int, Int[Tensor, " points"]]:
    """Return the lists of an index by axis, broadcast to the same number of points."""
    assert index.points is not None
    lists = ((axis, item) for axis, item in enumerate(index.axes) if isinstance(item, Tensor))
    return {axis: item.expand(index.points).flatten() for axis, item in lists}


def _along(index: Index, axis: int, position: Int[Tensor, " points"]) -> Axes:
    """Return the items that index a block whose points are along one axis; other axes with a list have size 1."""
    assert index.points is not None
    first = torch.zeros([1] * len(index.points), dtype=torch.long, device="cpu")
    axes: Axes = [first if isinstance(item, Tensor) else 0 if isinstance(item, int) else ALL for item in index.axes]
    axes[axis] = position.view(index.points)
    return axes


def _indices(item: int | slice | Int[Tensor, " count"]) -> Indices:
    """Return the indices of an item of an index. Consecutive ones are a slice, because slices are views."""
    if isinstance(item, int):
        return slice(item, item + 1, 1)
    if isinstance(item, slice) or not len(item):
        return item
    first = int(item[0])
    consecutive = slice(first, first + len(item), 1)
    return consecutive if item.tolist() == list(as_sequence(consecutive)) else item
