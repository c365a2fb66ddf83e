"""Results of `check()` for each claim, and for each cell that differs."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from jaxtyping import Bool, Float
from torch import Tensor

from clearhead._utils.checks import check_int
from clearhead._utils.text import json_text, short_token
from clearhead.explain._printed_matrix import PrintedMatrix
from clearhead.explain._recompute import calculation_order
from clearhead.explain.steps import COUNTING

if TYPE_CHECKING:
    from clearhead.explain.example import Example

MAX_DIGITS = 15  # after the decimal point, in computed numbers
Verdict = Literal["agrees", "differs", "carried"]


@dataclass(frozen=True)
class CellDifference:
    """A claimed number that differs from the computed one.

    `carried_from` names the earlier matrix of the text that the claimed number follows from, or is None.
    """

    row: int  # rows and columns are counted from 0
    column: int
    row_label: str
    column_label: str
    printed: str  # as printed in the text
    claimed: float
    computed: float
    carried_from: str | None = None

    @property
    def difference(self) -> float:
        return self.claimed - self.computed


@dataclass(frozen=True)
class Cause:
    """A usual mistake that reproduces wrong numbers of a matrix to their printed digits."""

    name: str  # short, such as "not divided by √d_k"
    sentence: str  # what was done, what should be done, and the first cell where it shows
    cells: tuple[tuple[int, int], ...]  # wrong cells that the mistake reproduces, (row, column) counted from 0
    exceptions: tuple[tuple[int, int], ...] = ()  # written cells that it does not reproduce


@dataclass(frozen=True, eq=False)
class MatrixComparison:
    """A claimed matrix and the computed one, of the same shape."""

    symbol: str  # name of the matrix in formulas
    row_labels: tuple[str, ...]
    column_labels: tuple[str, ...]
    claimed: PrintedMatrix
    tolerance: Float[Tensor, "rows columns"]
    computed: Float[Tensor, "rows columns"]
    rounded: Bool[Tensor, "rows columns"]  # cells that differ only because the author continued with rounded numbers
    transposed: bool = False  # the text prints the transpose of `claimed`


@dataclass(frozen=True)
class CheckResult:
    """Verdict on one claim, or on one given matrix (then `claim` is None)."""

    claim: int | None  # position in the file, counted from 1
    step: str
    head: int | None  # counted from 0
    kind: str  # values, shape, sum, count; or given
    verdict: Verdict
    message: str
    cells: tuple[CellDifference, ...] = ()
    causes: tuple[Cause, ...] = ()  # mistakes that explain the new errors; several may fit
    follows_from: tuple[int, ...] = ()  # earlier claims with the errors that carried cells follow from
    comparison: MatrixComparison | None = field(default=None, repr=False, compare=False)  # not in JSON


@dataclass(frozen=True, repr=False)
class Audit:
    """Results for one example: its given matrices, then its claims in the order of the file.

    Notebooks show an audit as an annotated page.
    """

    title: str
    findings: tuple[CheckResult, ...]
    example: Example | None = field(default=None, compare=False)  # the example that was checked

    @property
    def agrees(self) -> bool:
        """True if all results agree."""
        return all(result.verdict == "agrees" for result in self.findings)

    @property
    def first_error(self) -> CheckResult | None:
        """The first result in the order of the calculation that differs and is not only carried, or None."""
        errors = [result for result in self.findings if result.verdict == "differs"]
        return min(errors, key=lambda result: calculation_order(result.step, result.head), default=None)

    def following(self, error: CheckResult) -> tuple[CheckResult, ...]:
        """Return the later results with numbers that follow from an error."""
        return tuple(result for result in self.findings if error.claim in result.follows_from)

    def summary(self) -> str:
        """Return the number of results with each verdict in words."""
        if not self.findings:
            return "0 checked: there is nothing to check, because the file has no claims"
        agree, differ, carried = (self.count(verdict) for verdict in ("agrees", "differs", "carried"))
        return f"{len(self.findings)} checked: {agree} agree, {differ} differ, {carried} carried"

    def to_json(self, digits: int | None = None) -> str:
        """Return the results as JSON, without labels. Heads, rows and columns count from 1; infinities are null.

        Args:
            digits: digits after the decimal point of computed numbers (default: all).
        """
        if digits is not None:
            digits = check_int("digits", digits, least=0, most=MAX_DIGITS)
        document = {
            "title": self.title,
            "counting": COUNTING,
            "agrees": self.agrees,
            "findings": [_result_to_dict(result, digits) for result in self.findings],
        }
        return json_text(document)

    def to_toml(self) -> str:
        """Return the TOML file of the example with its wrong numbers corrected, to the digits that the text prints.

        Comments list what was changed, and what cannot be corrected.
        """
        from clearhead.explain._correction import corrected_toml

        if self.example is None:
            raise ValueError("the audit has no example to correct; expected an audit returned by check()")
        return corrected_toml(self.example, self)

    def count(self, verdict: Verdict) -> int:
        """Return the number of results with this verdict."""
        return sum(result.verdict == verdict for result in self.findings)

    def __repr__(self) -> str:
        return f"Audit of {short_token(self.title)!r}: {self.summary().replace(':', ',', 1)}"

    def _repr_html_(self) -> str:
        from clearhead.explain.render.audits import render_audit  # imports this module
        from clearhead.explain.render.notebooks import page_html

        return page_html(self, lambda style: render_audit(self, style), "clearhead check")


def _result_to_dict(result: CheckResult, digits: int | None) -> dict[str, Any]:
    entry = dataclasses.asdict(replace(result, cells=(), causes=(), comparison=None))
    del entry["comparison"]
    return entry | {
        "head": None if result.head is None else result.head + 1,
        "cells": [_cell_to_dict(cell, digits) for cell in result.cells],
        "causes": [_cause_to_dict(cause) for cause in result.causes],
    }


def _cause_to_dict(cause: Cause) -> dict[str, Any]:
    from_one = {
        name: [[row + 1, column + 1] for row, column in cells]
        for name, cells in (("cells", cause.cells), ("exceptions", cause.exceptions))
    }
    return dataclasses.asdict(cause) | from_one


def _cell_to_dict(cell: CellDifference, digits: int | None) -> dict[str, Any]:
    computed, difference = (
        value if digits is None or not math.isfinite(value) else round(value, digits)
        for value in (cell.computed, cell.difference)
    )
    values = {"claimed": cell.claimed, "computed": computed, "difference": difference}
    finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
    return {"row": cell.row + 1, "column": cell.column + 1, **finite, "carried_from": cell.carried_from}
