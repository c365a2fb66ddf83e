"""Results of `check()` for each claim, and for each cell that differs."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from clearhead._utils.text import json_text
from clearhead.explain._recompute import calculation_order
from clearhead.explain.steps import COUNTING

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


@dataclass(frozen=True)
class Audit:
    """Results for one example: its given matrices, then its claims in the order of the file."""

    title: str
    findings: tuple[CheckResult, ...]

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

    def to_json(self) -> str:
        """Return the results as JSON, without labels. Heads, rows and columns count from 1; infinities are null."""
        document = {
            "title": self.title,
            "counting": COUNTING,
            "agrees": self.agrees,
            "findings": [_result_to_dict(result) for result in self.findings],
        }
        return json_text(document)

    def count(self, verdict: Verdict) -> int:
        """Return the number of results with this verdict."""
        return sum(result.verdict == verdict for result in self.findings)


def _result_to_dict(result: CheckResult) -> dict[str, Any]:
    return dataclasses.asdict(result) | {
        "head": None if result.head is None else result.head + 1,
        "cells": [_cell_to_dict(cell) for cell in result.cells],
        "causes": [_cause_to_dict(cause) for cause in result.causes],
    }


def _cause_to_dict(cause: Cause) -> dict[str, Any]:
    from_one = {
        name: [[row + 1, column + 1] for row, column in cells]
        for name, cells in (("cells", cause.cells), ("exceptions", cause.exceptions))
    }
    return dataclasses.asdict(cause) | from_one


def _cell_to_dict(cell: CellDifference) -> dict[str, Any]:
    values = {"claimed": cell.claimed, "computed": cell.computed, "difference": cell.difference}
    finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
    return {"row": cell.row + 1, "column": cell.column + 1, **finite, "carried_from": cell.carried_from}
