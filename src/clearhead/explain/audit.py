"""What an audit of a worked example found: claim by claim, and cell by cell where they differ."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from clearhead._utils.text import json_text

Verdict = Literal["agrees", "differs", "carried"]


@dataclass(frozen=True)
class Cell:
    """A cell that differs. `carried_from` names the text's own earlier matrix from which the claimed number follows."""

    row: int  # from 0, as columns
    column: int
    row_label: str
    column_label: str
    printed: str  # as the text has it
    claimed: float
    computed: float
    carried_from: str | None = None

    @property
    def difference(self) -> float:
        return self.claimed - self.computed


@dataclass(frozen=True)
class Finding:
    """What became of one claim, or of one given matrix (then `claim` is None)."""

    claim: int | None  # its number in the file, from 1
    step: str
    head: int | None  # from 0
    kind: str  # values, shape, sum, count; or given
    verdict: Verdict
    message: str
    cells: tuple[Cell, ...] = ()


@dataclass(frozen=True)
class Audit:
    """All findings about one example: first its given matrices, then its claims in the order of the file."""

    title: str
    findings: tuple[Finding, ...]

    @property
    def agrees(self) -> bool:
        return all(finding.verdict == "agrees" for finding in self.findings)

    def to_json(self) -> str:
        """Everything but the labels, rows, columns and heads counted from 0; infinities are null."""
        findings = [dataclasses.asdict(finding) for finding in self.findings]
        for finding, plain in zip(self.findings, findings, strict=True):
            plain["cells"] = [_plain(cell) for cell in finding.cells]
        return json_text({"title": self.title, "agrees": self.agrees, "findings": findings})

    def count(self, verdict: Verdict) -> int:
        return sum(finding.verdict == verdict for finding in self.findings)


def _plain(cell: Cell) -> dict[str, Any]:
    numbers = {"claimed": cell.claimed, "computed": cell.computed, "difference": cell.difference}
    finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
    return {"row": cell.row, "column": cell.column, **finite, "carried_from": cell.carried_from}
