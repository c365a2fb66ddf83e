"""Parsing of indices such as `[0, [5, 7], 100:110]`, and of choices of one axis."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from clearhead._utils.checks import describe, list_items
from clearhead._utils.tensor_checks import INT_DTYPES, is_dense
from clearhead._utils.torch_internals import is_fake
from clearhead.ops.selection import Indices, count

AXIS_NAMES = ("batch", "heads", "q_len", "kv_len")
EXPECTED = "expected an integer, a slice, None, a list or tensor of integers, or a bool mask"
SEQUENCES = (list, tuple, range, np.ndarray)  # not a union, which torch.compile cannot trace

Item = None | int | slice | Int[Tensor, "..."]  # a new axis, or what is chosen of one axis


class Selection(NamedTuple):
    """Outer selection of the matrix."""

    batch: Indices
    heads: Indices
    rows: Indices
    keys: Indices

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(count(indices) for indices in self)

    def window(self) -> tuple[slice, slice] | None:
        """Return rows and keys if both are contiguous; None otherwise."""
        rows, keys = self.rows, self.keys
        if not isinstance(rows, slice) or not isinstance(keys, slice):
            return None
        return (slice(rows.start, rows.stop), slice(keys.start, keys.stop)) if rows.step == keys.step == 1 else None


@dataclass(frozen=True)
class Index:
    """Index in torch's form.

    Integers are from 0, slices have non-negative bounds, and `...` and bool masks are replaced by slices and lists.
    """

    items: tuple[Item, ...]  # one for each axis in order, with None for each new axis between them
    points: torch.Size | None  # shape to which the lists broadcast; None without lists

    @property
    def axes(self) -> list[int | slice | Tensor]:
        """Items of the four axes."""
        return [item for item in self.items if item is not None]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Sizes of the result: those of the lists, then one for each other axis, which is 1 for an integer."""
        others = (item for item in self.axes if not isinstance(item, Tensor))
        return (*(self.points or ()), *(count(item) if isinstance(item, slice) else 1 for item in others))

    def applied_to(self, block: Tensor, axes: Sequence[int | slice | Tensor]) -> Tensor:
        """Return a block of the matrix, indexed by other items for the four axes and the same new axes."""
        remaining = iter(axes)
        return block[tuple(None if item is None else next(remaining) for item in self.items)]


def parse_index(index: object, shape: Sequence[int], names: Sequence[str] = AXIS_NAMES) -> Index:
    """Parse an index of the four axes as torch does, except that Python's bools are refused."""
    parts = [_as_array(part) for part in (index if isinstance(index, tuple) else [index])]
    used = sum(_axes_of(part) for part in parts)
    dots = [dot for dot, part in enumerate(parts) if part is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    if used > len(shape):
        raise IndexError(f"too many indices: {used} for the {len(shape)} axes {', '.join(names)}")
    dot = dots[0] if dots else len(parts)
    parts[dot : dot + 1] = [slice(None)] * (len(shape) - used)
    items: list[Item] = []
    axis = 0
    for part in parts:
        if part is None:
            items.append(None)
        elif isinstance(part, Tensor):
            items += _lists(part, names[axis:], shape[axis:])
        else:
            items.append(_integer_or_slice(part, names[axis], shape[axis]))
        axis += _axes_of(part)
    return Index(tuple(items), _points(items, names))


def index_list(choice: object, length: int, axis: int) -> list[int]:
    """Convert an index, a slice or a sequence of indices to a list of indices of an axis; None selects all."""
    if choice is None:
        return list(range(length))
    name = AXIS_NAMES[axis]
    if isinstance(choice, slice):
        chosen = list(range(*_bounds(choice, name, length)))
    else:
        chosen = [_integer(part, name, length) for part in list_items(name, choice)]
    if not chosen:
        raise ValueError(f"{name} is {describe(choice)}; expected at least one of {length} indices")
    return chosen


def contiguous_slice(choice: slice, length: int, axis: int) -> slice:
    """Return a slice of step 1 with non-negative start and stop."""
    name = AXIS_NAMES[axis]
    if not isinstance(choice, slice):
        raise TypeError(f"{name} is {describe(choice)}; expected a slice, such as slice(100, 200)")
    start, stop, step = _bounds(choice, name, length)
    if step != 1:
        raise ValueError(f"the slice of {name} has step {step}; expected step 1")
    return slice(start, max(start, stop))


def evenly_spaced(length: int, count: int) -> list[slice]:
    """Return `count` evenly spaced indices of a length as slices: first with the smaller step, then with step + 1."""
    if length <= count:
        return [slice(0, length)]
    step, longer = divmod(length, count)
    middle = (count - longer) * step
    parts = [slice(step // 2, middle, step), slice(middle + (step + 1) // 2, length, step + 1)]
    return [part for part in parts if len(range(length)[part])]


def _axes_of(part: object) -> int:
    """Return the number of axes that a part of an index takes."""
    if part is None or part is Ellipsis:
        return 0
    return max(1, part.ndim) if isinstance(part, Tensor) and part.dtype == torch.bool else 1


def _as_array(part: object) -> object:
    """Return an array or a sequence as a tensor of one or more axes, and everything else unchanged."""
    if not isinstance(part, SEQUENCES):
        return part
    try:
        array = np.array(part)  # a copy, because torch refuses arrays that are read-only or have negative strides
        if not array.size and not isinstance(part, np.ndarray):
            array = array.astype(np.int64)
        return torch.from_numpy(array) if array.ndim else part
    except (TypeError, ValueError, RuntimeError):  # ragged, or not numbers
        return part


def _lists(part: Tensor, names: Sequence[str], shape: Sequence[int]) -> list[Item]:
    """Return the lists of indices that a tensor stands for: one, or for a mask one for each of its axes."""
    name, expected = f"the index of {names[0]}", "a tensor of integers or a bool mask"
    if not is_dense(part):
        raise TypeError(f"{name} is a sparse or nested tensor; expected {expected}, dense")
    if part.ndim == 0 and not part.is_floating_point():
        return [_integer(part, names[0], shape[0])]
    if part.is_meta or is_fake(part):
        raise ValueError(f"{name} stores no values; expected {expected} on a CPU or GPU")
    if part.dtype == torch.bool:
        for axis, given, size in zip(names, part.shape, shape, strict=False):
            if given != size:
                raise IndexError(f"the mask of {axis} has length {given}; expected {size}")
        return [indices.cpu() for indices in part.nonzero(as_tuple=True)]
    if part.dtype == torch.uint8 or part.dtype not in INT_DTYPES:  # torch reads uint8 as a mask
        raise TypeError(f"{name} has dtype {part.dtype}; expected integers such as torch.int64, or a bool mask")
    indices, length = part.detach().long().cpu(), shape[0]
    outside = indices[(indices < -length) | (indices >= length)]
    if outside.numel():
        raise IndexError(f"index {int(outside[0])} is out of range for {names[0]} of size {length}")
    return [torch.where(indices < 0, indices + length, indices)]


def _points(items: Sequence[Item], names: Sequence[str]) -> torch.Size | None:
    """Return the shape to which the lists of an index broadcast; None without lists."""
    axes = zip(names, (item for item in items if item is not None), strict=True)
    shapes = {name: item.shape for name, item in axes if isinstance(item, Tensor)}
    if not shapes:
        return None
    try:
        return torch.broadcast_shapes(*shapes.values())
    except RuntimeError:
        given = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        raise IndexError(f"the lists of the index have shapes {given}; expected shapes that broadcast") from None


def _integer_or_slice(part: object, name: str, length: int) -> int | slice:
    if not isinstance(part, slice):
        return _integer(part, name, length)
    start, stop, step = _bounds(part, name, length)
    if step < 1:
        raise ValueError(f"the slice of {name} has step {part.step}; expected 1 or more")
    return slice(start, max(start, stop), step)


def _bounds(part: slice, name: str, length: int) -> tuple[int, int, int]:
    try:
        return part.indices(length)
    except (TypeError, ValueError):  # a bound is not an integer, or the step is 0
        raise TypeError(f"the index of {name} is {describe(part)}; expected a slice of integers") from None


def _integer(part: object, name: str, length: int) -> int:
    if isinstance(part, bool) or (isinstance(part, Tensor) and part.dtype == torch.bool):
        raise TypeError(f"the index of {name} is {bool(part)}; {EXPECTED}")
    try:
        position = operator.index(part)  # pyright: ignore[reportArgumentType]
    except (TypeError, RuntimeError):  # a float, a tensor with several elements, or one on the meta device
        raise TypeError(f"the index of {name} is a {type(part).__name__}; {EXPECTED}") from None
    if not -length <= position < length:
        raise IndexError(f"index {position} is out of range for {name} of size {length}")
    return position % length
