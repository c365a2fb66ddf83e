"""`check()`: recompute a worked example and say of each claim whether it agrees, and where not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf

import torch
from torch import Tensor

from clearhead.worked.audit import Audit, Cell, Finding, Verdict
from clearhead.worked.claims import LEARNED, Claim
from clearhead.worked.example import Example
from clearhead.worked.fitting import best_fit
from clearhead.worked.grids import Grid
from clearhead.worked.reading import load
from clearhead.worked.recomputing import Judged, Recomputed, agree, order, places
from clearhead.worked.steps import SQUARE, Step


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
        self.computed = Recomputed(example)
        self.judged: list[Judged] = []

    def audit(self) -> Audit:
        found = {claim.number: self._examine(claim) for claim in sorted(self.example.claims, key=order)}
        return Audit(self.example.title, (*self._given(), *(found[number] for number in sorted(found))))

    def _examine(self, claim: Claim) -> Finding:
        heads = range(self.example.heads) if claim.head is None else [claim.head]
        found = [self.computed.matrix(claim.step, head) for head in heads]
        matrices = [matrix for matrix in found if matrix is not None]
        if not matrices:
            why = "every head reads all of X" if claim.step == "slice" else "there is no mask"
            return _finding(claim, "differs", f"this calculation has no such step: {why}")
        if claim.values is not None:
            return self._values(claim, claim.values, matrices[0])
        if claim.shape is not None:
            return self._shape(claim, claim.shape, matrices[0])
        if claim.sum is not None:
            return self._sum(claim, claim.sum, matrices)
        return self._count(claim, matrices)

    def _values(self, claim: Claim, grid: Grid, computed: Tensor) -> Finding:
        if grid.shape != tuple(computed.shape):
            hint = _turned(grid, computed)
            return _finding(claim, "differs", f"claimed {grid.shape}, computed {tuple(computed.shape)}{hint}")
        tolerance = grid.tolerance if claim.tolerance is None else torch.full_like(grid.values, claim.tolerance)
        wrong = ~grid.blank & ~agree(grid.values, computed, tolerance)
        causes = self.computed.causes(claim, grid, tolerance, wrong, self.judged)
        self.judged.append(Judged(claim, grid, tolerance, wrong))
        differing = [place for place in places(wrong) if causes.get(place, "") is not None]
        rows, columns = self.computed.labels(claim.step)
        cells = tuple(
            Cell(
                row,
                column,
                rows[row],
                columns[column],
                grid.printed[row][column],
                float(grid.values[row, column]),
                float(computed[row, column]),
                causes.get((row, column)),
            )
            for row, column in differing
        )
        found = _summed_up(claim, cells, grid, rounded=int(wrong.sum()) - len(cells))
        if claim.step == "mask" and cells:
            closed = sum(cell.claimed == -inf for cell in cells)
            found = replace(found, message=f"{found.message}: {len(cells) - closed} open and {closed} closed wrongly")
        return replace(found, message=f"{found.message}{_turned(grid, computed)}") if cells else found

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
        rows, columns = self.computed.labels(claim.step)
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
        rest = "; rows do" if which == "columns" and claim.step == "weights" else ""
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
        projected = self.example.traced(self.example.mask, {})
        for (name, head), grid in self.example.given.items():
            if name not in ("query", "key", "value") or head is None:
                continue
            step = projected.step(name, head)
            judge = _against_product if name in self.example.stated else _against_any_product
            verdict, message = judge(step, grid)
            yield Finding(None, name, head, "given", verdict, f"given {step.symbol} {message}")


def _against_product(step: Step, grid: Grid) -> tuple[Verdict, str]:
    product = step.formula.split(" = ")[1]
    wrong = int((~grid.blank & ~agree(grid.values, step.values, grid.tolerance)).sum())
    if not wrong:
        return "agrees", f"is {product}"
    return "differs", f"is not {product}: {wrong} of {int((~grid.blank).sum())} cells differ"


def _against_any_product(step: Step, grid: Grid) -> tuple[Verdict, str]:
    read = step.operands[0]
    fit = best_fit(read.values, grid)
    if fit.possible:
        return "agrees", f"is {read.symbol}·W for some W"
    return "differs", f"is {read.symbol}·W for no W: the best fit still misses a cell by {fit.at_least:.2f}"


def _finding(claim: Claim, verdict: Verdict, message: str, cells: tuple[Cell, ...] = ()) -> Finding:
    return Finding(claim.number, claim.step, claim.head, claim.kind, verdict, message, cells)


def _summed_up(claim: Claim, cells: tuple[Cell, ...], grid: Grid, rounded: int) -> Finding:
    blank = int(grid.blank.sum())
    written = grid.values.numel() - blank
    carried = sum(cell.carried_from is not None for cell in cells)
    if not cells:
        verdict, parts = "agrees", [f"{written} cells agree" if written else f"{grid.shape}"]
    elif carried == len(cells):
        sources = " and ".join(dict.fromkeys(str(cell.carried_from) for cell in cells))
        verdict, parts = "carried", [f"{carried} of {written} cells differ, carried from the text's own {sources}"]
    else:
        verdict, parts = "differs", [f"{len(cells)} of {written} cells differ"]
        parts += [f"{carried} of them carried"] if carried else []
    parts += [f"{rounded} follow from the rounded numbers printed before"] if rounded else []
    parts += [f"{blank} blank" if written else "all blank"] if blank else []
    return _finding(claim, verdict, ", ".join(parts), cells)


_TURNS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda matrix: matrix.T,
    "with its rows in reverse order": lambda matrix: matrix.flip(0),
    "with its columns in reverse order": lambda matrix: matrix.flip(1),
}


def _turned(grid: Grid, computed: Tensor) -> str:
    """What else the text may have written: the computed matrix, but not as it stands."""
    for how, turn in _TURNS.items():
        other = turn(computed)
        fits = other.shape == grid.values.shape and not grid.blank.all()
        if fits and (grid.blank | agree(grid.values, other, grid.tolerance)).all():
            return f"; it is the computed matrix {how}"
    return ""
