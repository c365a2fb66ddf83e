"""A matrix as somebody wrote it down: blanks stay blank, and the digits printed say how exact each number is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

BLANK = "_"
Cell = TypeVar("Cell")


@dataclass(frozen=True, eq=False)
class Grid:
    """Numbers with their text and tolerance: 0.50 claims ± 0.005, half a unit of its last digit."""

    values: Float[Tensor, "rows columns"]  # NaN where blank
    tolerance: Float[Tensor, "rows columns"]
    printed: tuple[tuple[str, ...], ...]

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.values.shape
        return rows, columns

    @property
    def blank(self) -> Tensor:
        return self.values.isnan()

    def turned(self) -> Grid:
        """Its transpose."""
        return Grid(self.values.T, self.tolerance.T, tuple(zip(*self.printed, strict=True)))


def read_grid(name: str, raw: object, *, blanks: bool = False, infinite: bool = False) -> Grid:
    """A list of rows of equal length, as TOML gives it with `parse_float=Decimal`.

    Args:
        blanks: whether a cell may be "_".
        infinite: whether a cell may be -inf, as masked scores are.
    """

    def number(where: str, cell: object) -> Decimal | None:
        if blanks and cell == BLANK:
            return None
        if isinstance(cell, bool) or not isinstance(cell, int | Decimal):
            expected = f'a number, or "{BLANK}" for a blank' if blanks else "a number"
            raise ValueError(f"{where} is {shown(cell)}; expected {expected}")
        found = Decimal(cell)
        if (not found.is_finite() or math.isinf(to_float(found))) and not (infinite and found == Decimal("-inf")):
            expected = "a finite number or -inf" if infinite else "a finite number"
            raise ValueError(f"{where} is {shown(cell)}; expected {expected}")
        return found

    rows = read_rows(name, raw, number)
    return Grid(
        _tensor([[math.nan if cell is None else to_float(cell) for cell in row] for row in rows]),
        _tensor([[0.0 if cell is None else half_digit(cell) for cell in row] for row in rows]),
        tuple(tuple(BLANK if cell is None else str(cell) for cell in row) for row in rows),
    )


def read_rows(name: str, raw: object, read: Callable[[str, object], Cell]) -> list[list[Cell]]:
    """A list of rows of equal length, each cell read by `read(where, cell)`."""
    if not isinstance(raw, list) or not raw:
        raise ValueError(f"{name} is {shown(raw)}; expected a list of rows")
    for number, row in enumerate(raw, 1):
        if not isinstance(row, list) or not row:
            raise ValueError(f"{name}: row {number} is {shown(row)}; expected a list of cells")
        if len(row) != len(raw[0]):
            raise ValueError(f"{name}: row {number} has {len(row)} cells, but row 1 has {len(raw[0])}")
    return [
        [read(f"{name}: row {number}, column {place}", cell) for place, cell in enumerate(row, 1)]
        for number, row in enumerate(raw, 1)
    ]


def _tensor(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def half_digit(number: Decimal) -> float:
    """Half a unit of the last digit that was written."""
    exponent = number.as_tuple().exponent
    return to_float(Decimal(5).scaleb(exponent - 1)) if isinstance(exponent, int) else 0.0


def to_float(number: Decimal) -> float:
    """As a float, infinite where it is too large for one."""
    try:
        return float(number)
    except OverflowError:
        return math.copysign(math.inf, number)


def shown(cell: object) -> str:
    """Short enough for one line."""
    text = str(cell) if isinstance(cell, Decimal) else repr(cell)
    return text if len(text) <= 40 else f"{text[:37]}..."
