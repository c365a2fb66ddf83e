"""Matrices as printed in a text: cells may be blank, and the printed digits give the tolerance of each number."""

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
CellValue = TypeVar("CellValue")


@dataclass(frozen=True, eq=False)
class PrintedMatrix:
    """Numbers with their printed text and tolerance: 0.50 has ± 0.005, half a unit of its last digit."""

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

    def merged(self, other: PrintedMatrix) -> PrintedMatrix:
        """Return this matrix with its blank cells filled from another one."""
        blank = self.blank
        return PrintedMatrix(
            torch.where(blank, other.values, self.values),
            torch.where(blank, other.tolerance, self.tolerance),
            tuple(
                tuple(second if first == BLANK else first for first, second in zip(*rows, strict=True))
                for rows in zip(self.printed, other.printed, strict=True)
            ),
        )

    def transpose(self) -> PrintedMatrix:
        """Return the transposed matrix."""
        return PrintedMatrix(self.values.T, self.tolerance.T, tuple(zip(*self.printed, strict=True)))


def read_matrix(name: str, raw: object, *, blanks: bool = False, infinite: bool = False) -> PrintedMatrix:
    """Read a list of rows of equal length, parsed by `tomllib` with `parse_float=Decimal`.

    Args:
        name: name of the matrix in error messages.
        raw: the parsed list.
        blanks: accept "_" for a blank cell.
        infinite: accept -inf, the value of a masked score.
    """

    def read_cell(cell_name: str, cell: object) -> Decimal | None:
        if blanks and cell == BLANK:
            return None
        if isinstance(cell, bool) or not isinstance(cell, int | Decimal):
            expected = f'a number, or "{BLANK}" for a blank' if blanks else "a number"
            raise ValueError(f"{cell_name} is {short_repr(cell)}; expected {expected}")
        value = Decimal(cell)
        if (not value.is_finite() or math.isinf(to_float(value))) and not (infinite and value == Decimal("-inf")):
            expected = "a finite number or -inf" if infinite else "a finite number"
            raise ValueError(f"{cell_name} is {short_repr(cell)}; expected {expected}")
        return value

    rows = read_rows(name, raw, read_cell)
    return PrintedMatrix(
        _tensor([[math.nan if cell is None else to_float(cell) for cell in row] for row in rows]),
        _tensor([[0.0 if cell is None else half_unit(cell) for cell in row] for row in rows]),
        tuple(tuple(BLANK if cell is None else str(cell) for cell in row) for row in rows),
    )


def read_rows(name: str, raw: object, read: Callable[[str, object], CellValue]) -> list[list[CellValue]]:
    """Read a list of rows of equal length, calling `read(name, cell)` for each cell."""
    if not isinstance(raw, list) or not raw:
        raise ValueError(f"{name} is {short_repr(raw)}; expected a list of rows")
    for row_index, row in enumerate(raw, 1):
        if not isinstance(row, list) or not row:
            raise ValueError(f"{name}: row {row_index} is {short_repr(row)}; expected a list of cells")
        if len(row) != len(raw[0]):
            raise ValueError(f"{name}: row {row_index} has {len(row)} cells, but row 1 has {len(raw[0])}")
    return [
        [read(f"{name}: row {row_index}, column {column_index}", cell) for column_index, cell in enumerate(row, 1)]
        for row_index, row in enumerate(raw, 1)
    ]


def _tensor(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def half_unit(value: Decimal) -> float:
    """Return half a unit of the last written digit."""
    exponent = value.as_tuple().exponent
    return to_float(Decimal(5).scaleb(exponent - 1)) if isinstance(exponent, int) else 0.0


def decimals(printed: str) -> int:
    """Return how many digits after the point a printed number has."""
    return len(printed.upper().partition("E")[0].partition(".")[2])


def to_float(value: Decimal) -> float:
    """Convert to a float. A number that overflows becomes infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def short_repr(cell: object) -> str:
    """Return a short representation for an error message of one line."""
    text = str(cell) if isinstance(cell, Decimal) else repr(cell)
    return text if len(text) <= 40 else f"{text[:37]}..."
