"""Answers as written: numbers, blanks, and cells that cannot be read."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead._utils.text import count_noun
from clearhead.explain._printed_matrix import BLANK, to_float
from clearhead.explain.exercises.exercise import Exercise
from clearhead.explain.steps import StepKey

_WRITTEN_BLANKS = ("", BLANK, "___")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,3})?", re.IGNORECASE)
_INFINITE = re.compile(r"-(inf|infinity|∞)", re.IGNORECASE)
_LARGEST = 1e6  # a larger answer is wrong, and would overflow in later steps
_FIRST_INFINITE = -1e4  # masked scores below this are read as −∞


@dataclass(frozen=True, eq=False)
class Answers:
    """A student's answers for one matrix."""

    values: Float[Tensor, "rows columns"]  # NaN where blank or unreadable
    written: tuple[tuple[str, ...], ...]  # "" where blank
    notes: tuple[str, ...]

    @property
    def blank(self) -> Tensor:
        return torch.tensor([[not cell for cell in row] for row in self.written])


def read_matrix(exercise: Exercise, key: StepKey, raw: object) -> Answers:
    """Read the answers for one blank step. A matrix of the wrong shape counts as unreadable, and a note says so."""
    rows, columns = exercise.steps[key].shape
    if raw is None:
        raw = [[BLANK] * columns] * rows
    problem = _shape_problem(raw, rows, columns)
    if problem:
        return Answers(torch.full((rows, columns), math.nan).double(), (("?",) * columns,) * rows, (problem,))
    cells = [[_text(cell) for cell in row] for row in raw]  # pyright: ignore[reportGeneralTypeIssues]
    values = [[_to_number(cell, infinite=key[0] == "masked") for cell in row] for row in cells]
    notes = [
        f"row {row}, column {column}: {cell[:20]!r} is not a number, or is too large"
        for row, line in enumerate(cells, 1)
        for column, cell in enumerate(line, 1)
        if cell and math.isnan(values[row - 1][column - 1])
    ]
    return Answers(torch.tensor(values, dtype=torch.float64), tuple(map(tuple, cells)), tuple(notes))


def too_few_digits(answers: Answers, exact: Tensor, wrong: Tensor, digits: int) -> str | None:
    """Return a note if wrong answers equal the exact ones to the digits that are written, but have too few digits."""
    count = 0
    for row, column in torch.nonzero(wrong & ~answers.values.isnan()).tolist():
        written = answers.written[row][column].partition("e")[0].partition(".")[2]
        close = abs(float(answers.values[row, column]) - float(exact[row, column])) <= 0.5 * 10.0 ** -len(written)
        count += len(written) < digits and close
    if not count:
        return None
    return f"{count_noun(count, 'answer')} with too few digits; expected {digits} digits after the point"


def _shape_problem(raw: object, rows: int, columns: int) -> str | None:
    expected = f"expected {rows} rows of {columns} cells"
    if not isinstance(raw, list) or not all(isinstance(row, list) for row in raw):
        return f"the answer is not a list of rows; {expected}"
    if len(raw) != rows:
        return f"the answer has {count_noun(len(raw), 'row')}; {expected}"
    for position, row in enumerate(raw, 1):
        if len(row) != columns:
            comma = "; write 0.5, not 0,5" if len(row) == 2 * columns else ""
            return f"row {position} has {count_noun(len(row), 'cell')}; {expected}{comma}"
    return None


def _text(cell: object) -> str:
    """Return a cell as text, with a point and an ASCII minus sign; "" if it is blank."""
    if isinstance(cell, bool) or not isinstance(cell, str | int | Decimal):
        return str(cell) if not isinstance(cell, Mapping | list) else "?"
    text = "".join(str(cell).split()).replace("−", "-").replace("–", "-").replace(",", ".")
    return "" if text in _WRITTEN_BLANKS else text


def _to_number(cell: str, *, infinite: bool) -> float:
    """Return the number, or NaN if the text is not a number."""
    if infinite and _INFINITE.fullmatch(cell):
        return -math.inf
    if not _NUMBER.fullmatch(cell):
        return math.nan
    value = to_float(Decimal(cell))
    if infinite and value <= _FIRST_INFINITE:
        return -math.inf
    return value if abs(value) <= _LARGEST else math.nan
