"""Conversion of indices such as `[0, 5, 100:110]` to one slice per axis."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

from clearhead._utils.checks import describe, list_items

AXIS_NAMES = ("batch", "heads", "q_len", "kv_len")


@dataclass(frozen=True)
class Selection:
    """One slice per axis with non-negative start and stop, and the axes dropped by an integer index."""

    slices: tuple[slice, slice, slice, slice]
    dropped: tuple[int, ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(len(range(part.start, part.stop, part.step)) for part in self.slices)


def parse_index(index: object, shape: Sequence[int]) -> Selection:
    """Parse integers, slices and `...` over the four axes as torch does: negative indices count from the end."""
    parts = list(index) if isinstance(index, tuple) else [index]
    dots = [dot for dot, part in enumerate(parts) if part is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    for dot in dots:
        parts[dot : dot + 1] = [slice(None)] * (len(shape) - len(parts) + 1)
    if len(parts) > len(shape):
        raise IndexError(f"too many indices: {len(parts)} for the {len(shape)} axes {', '.join(AXIS_NAMES)}")
    parts += [slice(None)] * (len(shape) - len(parts))
    slices, dropped = [], []
    for axis, (part, length) in enumerate(zip(parts, shape, strict=True)):
        if isinstance(part, slice):
            start, stop, step = _bounds(part, axis, length)
            if step < 1:
                raise ValueError(f"the slice of {AXIS_NAMES[axis]} has step {part.step}; expected 1 or more")
            slices.append(slice(start, max(start, stop), step))
        else:
            position = _index(part, axis, length)
            slices.append(slice(position, position + 1, 1))
            dropped.append(axis)
    return Selection(tuple(slices), tuple(dropped))


def index_list(choice: object, length: int, axis: int) -> list[int]:
    """Convert an index, a slice or a sequence of indices to a list of indices of an axis; None selects all."""
    if choice is None:
        return list(range(length))
    if isinstance(choice, slice):
        chosen = list(range(*_bounds(choice, axis, length)))
    else:
        chosen = [_index(part, axis, length) for part in list_items(AXIS_NAMES[axis], choice)]
    if not chosen:
        raise ValueError(f"{AXIS_NAMES[axis]} is {describe(choice)}; expected at least one of {length} indices")
    return chosen


def contiguous_slice(choice: slice, length: int, axis: int) -> slice:
    """Return a slice of step 1 with non-negative start and stop."""
    if not isinstance(choice, slice):
        raise TypeError(f"{AXIS_NAMES[axis]} is {describe(choice)}; expected a slice, such as slice(100, 200)")
    start, stop, step = _bounds(choice, axis, length)
    if step != 1:
        raise ValueError(f"the slice of {AXIS_NAMES[axis]} has step {step}; expected step 1")
    return slice(start, max(start, stop))


def evenly_spaced(length: int, count: int) -> list[slice]:
    """Return `count` evenly spaced indices of a length as slices: first with the smaller step, then with step + 1."""
    if length <= count:
        return [slice(0, length)]
    step, longer = divmod(length, count)
    middle = (count - longer) * step
    parts = [slice(step // 2, middle, step), slice(middle + (step + 1) // 2, length, step + 1)]
    return [part for part in parts if len(range(length)[part])]


def _bounds(part: slice, axis: int, length: int) -> tuple[int, int, int]:
    try:
        return part.indices(length)
    except (TypeError, ValueError):  # a bound is not an integer, or the step is 0
        raise TypeError(f"the index of {AXIS_NAMES[axis]} is {describe(part)}; expected a slice of integers") from None


def _index(part: object, axis: int, length: int) -> int:
    try:
        position = operator.index(part)  # pyright: ignore[reportArgumentType]
    except (TypeError, RuntimeError):  # a tensor with several elements, or on the meta device
        raise TypeError(
            f"the index of {AXIS_NAMES[axis]} is a {type(part).__name__}; expected an integer or a slice"
            " (for other indexing take .dense() of a part first)"
        ) from None
    if isinstance(part, bool):
        raise TypeError(f"the index of {AXIS_NAMES[axis]} is {part}; expected an integer or a slice")
    if not -length <= position < length:
        raise IndexError(f"index {position} is out of range for {AXIS_NAMES[axis]} of size {length}")
    return position % length
