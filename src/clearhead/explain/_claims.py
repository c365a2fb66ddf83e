"""What a text says about a calculation: matrices, shapes, sums and numbers of things."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Literal

import torch

from clearhead.explain._grids import Grid, read_grid, shown, to_float
from clearhead.explain.steps import NAMES

# what else than a step's result can be claimed: the mask M, and the learned matrices
LEARNED = ("query_weight", "key_weight", "value_weight", "output_weight")
SUBJECTS = (*NAMES, "mask", *LEARNED)
JOINT = ("input", "concat", "output", "mask", "output_weight")  # one for all heads
KINDS = ("values", "shape", "sum", "count")
_KEYS = ("step", "head", *KINDS, "tolerance")


@dataclass(frozen=True, eq=False)
class Claim:
    """One claim; exactly one of the last four is there."""

    number: int  # its place in the file, from 1
    step: str
    head: int | None  # counted from 0; None: all heads, or a step of all heads
    tolerance: float | None  # instead of what the printed digits say
    values: Grid | None = None
    shape: tuple[int, int] | None = None
    sum: Literal["rows", "columns"] | None = None
    count: int | None = None

    @property
    def kind(self) -> str:
        return next(kind for kind in KINDS if getattr(self, kind) is not None)


def read_claim(number: int, raw: object, heads: int) -> Claim:
    """One `[[claims]]` table of an example file."""
    name = f"claim {number}"
    if not isinstance(raw, Mapping):
        raise ValueError(f"{name} is {shown(raw)}; expected a table, [[claims]]")
    check_keys(name, raw, _KEYS)
    step = raw.get("step")
    if step not in SUBJECTS:
        raise ValueError(f"{name}: step is {shown(step)}; {nearest(str(step), SUBJECTS)}")
    kinds = [kind for kind in KINDS if kind in raw]
    if len(kinds) != 1:
        raise ValueError(f"{name} ({step}): expected one of {', '.join(KINDS)}, found {', '.join(kinds) or 'none'}")
    [kind] = kinds
    name = f"{name} ({step})"
    head = _head(name, raw.get("head"), step, heads, needed=kind == "values")
    if kind == "values" and step in ("mask", "masked"):
        values = _mask_values(name, raw[kind], exact=step == "mask")
        return Claim(number, step, head, _tolerance(name, raw.get("tolerance")), values)
    return Claim(number, step, head, _tolerance(name, raw.get("tolerance")), **{kind: _READERS[kind](name, raw[kind])})


def _head(name: str, raw: object, step: str, heads: int, *, needed: bool) -> int | None:
    if step in JOINT:
        if raw is not None:
            raise ValueError(f"{name}: head is {shown(raw)}, but there is one {step} for all heads; leave head out")
        return None
    if raw is None:
        if needed and heads > 1:
            raise ValueError(f"{name}: each of the {heads} heads has one; give head, from 1 to {heads}")
        return 0 if heads == 1 and needed else None
    if isinstance(raw, bool) or not isinstance(raw, int) or not 1 <= raw <= heads:
        raise ValueError(f"{name}: head is {shown(raw)}; expected a whole number from 1 to {heads}")
    return raw - 1


def _tolerance(name: str, raw: object) -> float | None:
    if raw is None:
        return None
    if isinstance(raw, bool) or not isinstance(raw, int | Decimal) or not Decimal(raw).is_finite() or raw < 0:
        raise ValueError(f"{name}: tolerance is {shown(raw)}; expected a number, 0 or more")
    return to_float(Decimal(raw))


def _values(name: str, raw: object) -> Grid:
    return read_grid(f"{name}: values", raw, blanks=True, infinite=True)


def _mask_values(name: str, raw: object, *, exact: bool) -> Grid:
    """Read −1e9 as −∞. The 0 of a mask is `exact`: it has no unprinted digits, as the 0 of a masked score may have."""
    grid = _values(name, raw)
    tolerance = torch.zeros_like(grid.tolerance) if exact else grid.tolerance
    return replace(grid, values=torch.where(grid.values <= -1e4, -torch.inf, grid.values), tolerance=tolerance)


def _shape(name: str, raw: object) -> tuple[int, int]:
    if isinstance(raw, list) and len(raw) == 2 and all(type(size) is int and size > 0 for size in raw):
        return raw[0], raw[1]
    raise ValueError(f"{name}: shape is {shown(raw)}; expected two whole numbers, [rows, columns]")


def _sum(name: str, raw: object) -> str:
    if raw not in ("rows", "columns"):
        raise ValueError(f'{name}: sum is {shown(raw)}; expected "rows" or "columns", which are claimed to sum to 1')
    return str(raw)


def _count(name: str, raw: object) -> int:
    if type(raw) is not int or raw < 0:
        raise ValueError(f"{name}: count is {shown(raw)}; expected a whole number, 0 or more")
    return raw


_READERS: dict[str, Any] = {"values": _values, "shape": _shape, "sum": _sum, "count": _count}


def check_keys(name: str, raw: Mapping[str, object], known: Collection[str]) -> None:
    """Refuse a key that is not known, with the nearest one that is."""
    for key in raw:
        if key not in known:
            raise ValueError(f"{name} has an unknown key {shown(key)}; {nearest(key, known)}")


def nearest(word: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(known)}"
