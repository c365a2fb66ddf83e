"""Claims of a text about the matrices of a calculation: values, shapes, sums and counts."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Literal

import torch

from clearhead.explain._printed_matrix import PrintedMatrix, read_matrix, short_repr, to_float
from clearhead.explain.steps import STEP_NAMES

# a claim is about the result of a step, the mask M, or a learned matrix
LEARNED_MATRICES = ("query_weight", "key_weight", "value_weight", "output_weight")
CLAIMABLE_MATRICES = (*STEP_NAMES, "mask", *LEARNED_MATRICES)
SHARED_MATRICES = ("input", "concat", "output", "mask", "output_weight")  # shared by all heads
CLAIM_KINDS = ("values", "shape", "sum", "count")
_CLAIM_KEYS = ("step", "head", *CLAIM_KINDS, "tolerance")


@dataclass(frozen=True, eq=False)
class Claim:
    """One claim of a text. Exactly one of the last four fields is not None."""

    position: int  # in the file, counted from 1
    step: str
    head: int | None  # counted from 0; None for all heads, or for a matrix shared by all heads
    tolerance: float | None  # overrides the tolerance of the printed digits
    values: PrintedMatrix | None = None
    shape: tuple[int, int] | None = None
    sum: Literal["rows", "columns"] | None = None
    count: int | None = None

    @property
    def kind(self) -> str:
        return next(kind for kind in CLAIM_KINDS if getattr(self, kind) is not None)


def read_claim(position: int, raw: object, heads: int) -> Claim:
    """Read one `[[claims]]` table of an example file."""
    name = f"claim {position}"
    if not isinstance(raw, Mapping):
        raise ValueError(f"{name} is {short_repr(raw)}; expected a table, [[claims]]")
    check_keys(name, raw, _CLAIM_KEYS)
    step = raw.get("step")
    if step not in CLAIMABLE_MATRICES:
        raise ValueError(f"{name}: step is {short_repr(step)}; {suggestion(str(step), CLAIMABLE_MATRICES)}")
    kinds = [kind for kind in CLAIM_KINDS if kind in raw]
    if len(kinds) != 1:
        raise ValueError(
            f"{name} ({step}): expected one of {', '.join(CLAIM_KINDS)}, found {', '.join(kinds) or 'none'}"
        )
    [kind] = kinds
    name = f"{name} ({step})"
    head = _read_head(name, raw.get("head"), step, heads, required=kind == "values")
    tolerance = _read_tolerance(name, raw.get("tolerance"))
    if kind == "values" and step in ("mask", "masked"):
        values = _read_mask_values(name, raw[kind], exact=step == "mask")
        return Claim(position, step, head, tolerance, values)
    return Claim(position, step, head, tolerance, **{kind: _READERS[kind](name, raw[kind])})


def _read_head(name: str, raw: object, step: str, heads: int, *, required: bool) -> int | None:
    if step in SHARED_MATRICES:
        if raw is not None:
            raise ValueError(
                f"{name}: head is {short_repr(raw)}, but there is one {step} for all heads; leave head out"
            )
        return None
    if raw is None:
        if required and heads > 1:
            raise ValueError(f"{name}: head is missing; expected a whole number from 1 to {heads}")
        return 0 if heads == 1 and required else None
    if isinstance(raw, bool) or not isinstance(raw, int) or not 1 <= raw <= heads:
        raise ValueError(f"{name}: head is {short_repr(raw)}; expected a whole number from 1 to {heads}")
    return raw - 1


def _read_tolerance(name: str, raw: object) -> float | None:
    if raw is None:
        return None
    if isinstance(raw, bool) or not isinstance(raw, int | Decimal) or not Decimal(raw).is_finite() or raw < 0:
        raise ValueError(f"{name}: tolerance is {short_repr(raw)}; expected a number, 0 or more")
    return to_float(Decimal(raw))


def _read_values(name: str, raw: object) -> PrintedMatrix:
    return read_matrix(f"{name}: values", raw, blanks=True, infinite=True)


def _read_mask_values(name: str, raw: object, *, exact: bool) -> PrintedMatrix:
    """Read a mask or masked scores. A very negative number such as −1e9 is read as −∞.

    With `exact`, the tolerance is 0: the 0 of a mask is not rounded, unlike a masked score.
    """
    matrix = _read_values(name, raw)
    tolerance = torch.zeros_like(matrix.tolerance) if exact else matrix.tolerance
    return replace(matrix, values=torch.where(matrix.values <= -1e4, -torch.inf, matrix.values), tolerance=tolerance)


def _read_shape(name: str, raw: object) -> tuple[int, int]:
    if isinstance(raw, list) and len(raw) == 2 and all(type(size) is int and size > 0 for size in raw):
        return raw[0], raw[1]
    raise ValueError(f"{name}: shape is {short_repr(raw)}; expected two whole numbers, [rows, columns]")


def _read_sum(name: str, raw: object) -> str:
    if raw not in ("rows", "columns"):
        raise ValueError(f'{name}: sum is {short_repr(raw)}; expected "rows" or "columns", to claim that they sum to 1')
    return str(raw)


def _read_count(name: str, raw: object) -> int:
    if type(raw) is not int or raw < 0:
        raise ValueError(f"{name}: count is {short_repr(raw)}; expected a whole number, 0 or more")
    return raw


_READERS: dict[str, Any] = {"values": _read_values, "shape": _read_shape, "sum": _read_sum, "count": _read_count}


def check_keys(name: str, raw: Mapping[str, object], known: Collection[str]) -> None:
    """Raise if a key is unknown, and suggest the nearest known key."""
    for key in raw:
        if key not in known:
            raise ValueError(f"{name} has an unknown key {short_repr(key)}; {suggestion(key, known)}")


def suggestion(word: str, known: Collection[str]) -> str:
    """Suggest the nearest known word, or else list all known words."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(known)}"
