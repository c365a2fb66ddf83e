"""`check()`: recompute a worked example and say of each claim whether it agrees, and where not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf

import torch
from torch import Tensor

from clearhead.explain._calculation import Calculation, sources
from clearhead.explain._claims import JOINT, LEARNED, Claim
from clearhead.explain._fitting import best_fit
from clearhead.explain._grids import Grid
from clearhead.explain._recomputation import Judged, agree, judge, places
from clearhead.explain.audit import Audit, Cell, Finding, Verdict
from clearhead.explain.example import Example
from clearhead.explain.render.wording import counted
from clearhead.explain.steps import NAMES, SQUARE, Axis, Step
from clearhead.explain.toml_format import load


def check(example: Example | str | os.PathLike[str]) -> Audit:
    """Recompute an example (one that was read, a file, or the name of a built-in one) and judge each of its claims.

    A number agrees if it is the computed one to its printed digits. One that differs, but follows from the text's own
    earlier matrices, is carried: the error is theirs.

    >>> [finding.message for finding in check("song").findings if finding.step == "query"]
    ['18 of 24 cells differ']
    """
    example = example if isinstance(example, Example) else load(example)
    return _Auditor(example).audit()


class _Auditor:
    def __init__(self, example: Example) -> None:
        self.example = example
        self.trace = example.trace()
        self.computed = Calculation(example, example.given_values)
        self.judged: list[Judged] = []

    def audit(self) -> Audit:
        found = {claim.number: self._examine(claim) for claim in sorted(self.example.claims, key=_order)}
        return Audit(self.example.title, (*self._given(), *(found[number] for number in sorted(found))))

    def _examine(self, claim: Claim) -> Finding:
        if claim.step in NAMES and not self.trace.named(claim.step):
            why = "every head reads all of X" if claim.step == "slice" else "there is no mask"
            return _finding(claim, "differs", f"this calculation has no such step: {why}")
        one = claim.head is not None or claim.step in JOINT
        heads = [claim.head or 0] if one else range(self.example.heads)
        matrices = [self.computed.matrix(claim.step, head) for head in heads]
        if claim.values is not None:
            return self._values(claim, claim.values, matrices[0])
        if claim.shape is not None:
            return self._shape(claim, claim.shape, matrices[0])
        if claim.sum is not None:
            return self._sum(claim, claim.sum, matrices)
        return self._count(claim, matrices)

    def _values(self, claim: Claim, grid: Grid, computed: Tensor) -> Finding:
        shape, prefix = tuple(computed.shape), ""
        if grid.shape != shape:
            turned = grid.turned()
            if turned.shape != shape or not _mostly(turned, computed):
                return _finding(claim, "differs", f"claimed {grid.shape}, computed {shape}")
            grid, prefix = turned, f"claimed {grid.shape}, computed {shape}; read as its transpose, "
        tolerance = grid.tolerance if claim.tolerance is None else torch.full_like(grid.values, claim.tolerance)
        judged = judge(self.example, claim, self._symbol(claim), grid, tolerance, self.judged)
        self.judged.append(judged)
        cells = self._cells(claim.step, grid, computed, judged.wrong, judged)
        found = _summed_up(claim, cells, judged)
        notes = _mask_notes(grid, cells) if claim.step == "mask" else ""
        notes += _looks_like(grid, computed) if cells else ""
        return replace(
            found,
            message=f"{prefix}{found.message}{notes}",
            verdict="differs" if prefix and found.verdict == "agrees" else found.verdict,
        )

    def _cells(
        self, subject: str, grid: Grid, computed: Tensor, wrong: Tensor, judged: Judged | None = None
    ) -> tuple[Cell, ...]:
        rows, columns = self._labels(subject, computed)
        return tuple(
            Cell(
                row,
                column,
                rows[row],
                columns[column],
                grid.printed[row][column],
                float(grid.values[row, column]),
                float(computed[row, column]),
                " and ".join(judged.causes((row, column))) or None if judged else None,
            )
            for row, column in places(wrong)
        )

    def _labels(self, subject: str, matrix: Tensor) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What stands before the rows and over the columns."""
        axes: tuple[Axis, Axis] = ("token", "token") if subject == "mask" else ("dimension", "dimension")
        if subject in NAMES:
            step = self.trace.named(subject)[0]
            axes = step.rows, step.columns
        rows, columns = (self.trace.labels(axis, size) for axis, size in zip(axes, matrix.shape, strict=True))
        return rows, columns

    def _symbol(self, claim: Claim) -> str:
        """How a claimed matrix is called in formulas."""
        if claim.step in NAMES:
            return self.trace.step(claim.step, claim.head).symbol
        return "M" if claim.step == "mask" else f"W_{claim.step[0].upper()}"

    def _shape(self, claim: Claim, shape: tuple[int, int], computed: Tensor) -> Finding:
        found = tuple(computed.shape)
        if found == shape:
            return _finding(claim, "agrees", f"{shape}")
        return _finding(claim, "differs", f"claimed {shape}, computed {found}{self._other_layer(claim, shape)}")

    def _other_layer(self, claim: Claim, shape: tuple[int, int]) -> str:
        """The claimed shape may be that of the layer with the other split."""
        heads, width = self.example.heads, self.example.x.shape[1]
        if claim.step not in LEARNED[:3] or heads == 1 or width % heads:
            return ""
        here = sum(self.example.weights[name].numel() for name in ("query", "key", "value"))
        if self.example.split == "slice":
            other, rows, there = "project", width, here * heads
        else:
            other, rows, there = "slice", width // heads, here // heads
        if shape != (rows, self.example.weights[claim.step.removesuffix("_weight")].shape[-1]):
            return ""
        return f'; that is another layer, split = "{other}", with {there} projection weights where this has {here}'

    def _sum(self, claim: Claim, which: str, matrices: list[Tensor]) -> Finding:
        tolerance = 1e-6 if claim.tolerance is None else claim.tolerance
        rows, columns = self._labels(claim.step, matrices[0])
        cells, sums = [], []
        for head, matrix in enumerate(matrices, 1):
            name = "sum" if len(matrices) == 1 else f"sum, head {head}"
            found = matrix.sum(dim=1 if which == "rows" else 0)
            sums.append(" ".join(f"{value:.2f}" for value in found.tolist()))
            for number in torch.nonzero((found - 1).abs() > tolerance).flatten().tolist():
                place = (number, 0, rows[number], name) if which == "rows" else (0, number, name, columns[number])
                cells.append(Cell(*place, "1", 1.0, float(found[number])))
        if not cells:
            return _finding(claim, "agrees", f"{which} sum to 1")
        rows_do = all((matrix.sum(dim=1) - 1).abs().max() <= tolerance for matrix in matrices)
        rest = "; rows do" if which == "columns" and rows_do else ""
        return _finding(claim, "differs", f"{which} sum to {' | '.join(sums)}, not to 1{rest}", tuple(cells))

    def _count(self, claim: Claim, matrices: list[Tensor]) -> Finding:
        """Rows, one vector for each token; but of scores and weights, matrices, unless a head is named."""
        if claim.step in SQUARE and claim.head is None:
            found, what = len(matrices), "one matrix for each head, with a row for each token"
        else:
            found = matrices[0].shape[0]
            what = "one row for each column that it reads" if claim.step in LEARNED else "one row for each token"
        if found == claim.count:
            return _finding(claim, "agrees", f"{found}: {what}")
        return _finding(claim, "differs", f"claimed {claim.count}, computed {found}: {what}")

    def _given(self) -> Iterator[Finding]:
        """A given Q, K or V should be X·W for the W that is stated, or else for some W."""
        projected = self.example.trace_without_given()
        for (name, head), grid in self.example.given.items():
            if name not in ("query", "key", "value") or head is None:
                continue
            step = projected.step(name, head)
            if name in self.example.stated:
                yield self._against_product(step, grid)
            else:
                yield _against_any_product(step, grid)

    def _against_product(self, step: Step, grid: Grid) -> Finding:
        product = step.formula.split(" = ")[1]
        wrong = ~grid.blank & ~agree(grid.values, step.values, grid.tolerance)
        cells = self._cells(step.name, grid, step.values, wrong)
        if not cells:
            return _about_given(step, "agrees", f"is {product}")
        message = f"is not {product}: {len(cells)} of {int((~grid.blank).sum())} cells differ"
        return replace(_about_given(step, "differs", message), cells=cells)


def _about_given(step: Step, verdict: Verdict, message: str) -> Finding:
    return Finding(None, step.name, step.head, "given", verdict, f"given {step.symbol} {message}")


def _against_any_product(step: Step, grid: Grid) -> Finding:
    read = step.operands[0]
    fit = best_fit(read.values, grid)
    if fit.possible:
        return _about_given(step, "agrees", f"is {read.symbol}·W for some W")
    message = f"is {read.symbol}·W for no W: the best fit still misses a cell by {fit.missed:.2g}"
    return _about_given(step, "differs", message)


def _finding(claim: Claim, verdict: Verdict, message: str, cells: tuple[Cell, ...] = ()) -> Finding:
    return Finding(claim.number, claim.step, claim.head, claim.kind, verdict, message, cells)


def _summed_up(claim: Claim, cells: tuple[Cell, ...], judged: Judged) -> Finding:
    grid, rounded = judged.grid, int(judged.rounded.sum())
    blank = int(grid.blank.sum())
    written = grid.values.numel() - blank
    carried = sum(cell.carried_from is not None for cell in cells)
    if not cells:
        verdict, parts = (
            "agrees",
            [f"{counted(written, 'cell')} {'agrees' if written == 1 else 'agree'}" if written else f"{grid.shape}"],
        )
    elif carried == len(cells):
        sources = " and ".join(dict.fromkeys(root.symbol for root in judged.carried))
        verdict, parts = "carried", [f"{carried} of {written} cells differ, carried from the text's own {sources}"]
    else:
        verdict, parts = "differs", [f"{len(cells)} of {written} cells differ"]
        parts += [f"{carried} of them carried"] if carried else []
    parts += (
        [f"{rounded} {'follows' if rounded == 1 else 'follow'} from the rounded numbers printed before"]
        if rounded
        else []
    )
    parts += [f"{blank} blank" if written else "all blank"] if blank else []
    return _finding(claim, verdict, ", ".join(parts), cells)


_TURNS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda matrix: matrix.T,
    "with its rows in reverse order": lambda matrix: matrix.flip(0),
    "with its columns in reverse order": lambda matrix: matrix.flip(1),
}


def _looks_like(grid: Grid, computed: Tensor) -> str:
    """What else the text may have written: the computed matrix, but not as it stands."""
    for how, turn in _TURNS.items():
        other = turn(computed)
        if other.shape == grid.values.shape and (grid.blank | agree(grid.values, other, grid.tolerance)).all():
            return f"; it is the computed matrix {how}"
    return ""


def _mostly(grid: Grid, computed: Tensor) -> bool:
    """Whether at least half of what is written agrees."""
    right = ~grid.blank & agree(grid.values, computed, grid.tolerance)
    return 2 * int(right.sum()) >= int((~grid.blank).sum())


def _mask_notes(grid: Grid, cells: tuple[Cell, ...]) -> str:
    """Of a mask that is written as it is added, how many cells are open and closed wrongly."""
    written = grid.values[~grid.blank]
    if ((written == 0) | (written == -inf)).all():
        closed = sum(cell.claimed == -inf for cell in cells)
        return f": {len(cells) - closed} open and {closed} closed wrongly" if cells else ""
    if ((written == 0) | (written == 1)).all():
        return "; it is written as 1 and 0, but what is added to the scores is 0 and −∞"
    return ""


def _order(claim: Claim) -> tuple[int, int]:
    """The calculation's order: what is read comes first."""
    return len(sources(claim.step)), claim.head or 0
