"""Classification of wrong numbers in a text: new errors, and numbers that follow from an earlier error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import torch
from torch import Tensor

from clearhead.explain._calculation import Calculation, sources
from clearhead.explain._claims import Claim
from clearhead.explain._grids import Grid
from clearhead.explain.example import Example

ROUNDING = 1e-12  # of a matrix's largest number: what float64 may be off where a digit stands exactly halfway
_MAX_PROBED = 2000  # cells of one matrix whose unprinted digits are varied
_MAX_BATCH = 2**22  # numbers in a batch of variations
_MAX_SUBSETS = 64  # sets of errors that are tried one by one

Place = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Judged:
    """A claimed matrix, its wrong cells, and the earlier errors that they follow from."""

    claim: Claim
    symbol: str
    grid: Grid
    tolerance: Tensor
    wrong: Tensor
    rounded: Tensor  # cells that differ only because the author continued with rounded numbers
    carried: Mapping[Judged, Tensor]  # earlier matrix with new errors -> cells here that follow from those
    corrected: Tensor  # the matrix as printed by an author who makes no error
    intended: Tensor  # the matrix as printed, without its new errors
    exact: bool  # printed without rounding and without error

    @cached_property
    def new(self) -> Tensor:
        """The wrong cells that follow from no earlier error."""
        found = self.wrong.clone()
        for cells in self.carried.values():
            found &= ~cells
        return found

    def feeds(self, later: Claim) -> bool:
        """Return whether a later claim is computed from this matrix, directly or not."""
        earlier = self.claim
        same = earlier.head is None or later.head is None or earlier.head == later.head
        return same and earlier.step in sources(later.step)

    def causes(self, place: Place) -> list[str]:
        """Return the symbols of the matrices that a carried cell follows from."""
        return list(dict.fromkeys(root.symbol for root, cells in self.carried.items() if cells[place]))

    def without(self, root: Judged, matrix: Tensor) -> Tensor:
        """Correct the cells of a version of this matrix that have, or follow from, the new errors of `root`."""
        cells = self.new if root is self else self.carried.get(root)
        return matrix if cells is None else torch.where(cells, self.corrected, matrix)


History = dict[Judged, Tensor]  # the values with which the author may have continued


def judge(
    example: Example, claim: Claim, symbol: str, grid: Grid, tolerance: Tensor, before: Sequence[Judged]
) -> Judged:
    """Compare a claimed matrix with the computed one, and search for the causes of each difference.

    Where a number follows from correct numbers as printed, rounded, it is not wrong. Where it follows from a wrong one,
    it is carried. What is left is a new error.
    """
    judging = _Judging(example, claim, grid, tolerance, [judged for judged in before if judged.feeds(claim)])
    judging.run()
    wrong, values = judging.wrong, grid.values
    corrected = intended = values
    if wrong.any():
        corrected = torch.where(wrong, _rounded(judging.without_errors, grid), values)
        intended = torch.where(judging.unexplained, _rounded(judging.closest, grid), values)
    exact = not wrong.any() and bool((grid.blank | (values == judging.computed)).all())
    rounded = judging.differs & ~wrong
    return Judged(claim, symbol, grid, tolerance, wrong, rounded, judging.carried, corrected, intended, exact)


class _Judging:
    """The search for histories of the text that explain the wrong cells of one claimed matrix."""

    def __init__(self, example: Example, claim: Claim, grid: Grid, tolerance: Tensor, before: Sequence[Judged]) -> None:
        self.example, self.claim, self.grid, self.tolerance, self.before = example, claim, grid, tolerance, before
        self.roots = [judged for judged in before if judged.new.any()]
        self.computed = self._follow({})
        self.differs = ~grid.blank & ~self._fits(self.computed)
        self.wrong = self.differs.clone()
        self.unexplained = self.differs.clone()
        self.carried: dict[Judged, Tensor] = {}
        self.closest = self.without_errors = self.computed

    def run(self) -> None:
        if not self.wrong.any():
            return
        self.without_errors = self._follow({judged: judged.corrected for judged in self.before})
        most = int(self._fits(self.computed).sum())
        for history in self._correct_histories():
            found = self._follow(history)
            self.wrong &= ~self._fits(found)
            self.unexplained = self.wrong.clone()
            most = self._compare(found, most)
            if not self.wrong.any():
                return
        for history in self._wrong_histories():
            found = self._follow(history)
            self._blame(history, found, self._fits(found))
            most = self._compare(found, most)
            if not self.unexplained.any():
                return
        for roots in _subsets(self.roots):
            history = {root: root.grid.values for root in roots}
            found = self._follow(history)
            moved = self._moved(history, found)
            if moved is not None:
                self._blame(history, found, self._fits(found, moved))
            if not self.unexplained.any():
                return

    def _correct_histories(self) -> Iterator[History]:
        """Yield correct numbers to continue with, rounded as printed: all matrices of the text, or one or two."""
        yield {judged: judged.corrected for judged in self.before}
        rounded = [judged for judged in self.before if not judged.exact]
        for size in (1, 2):
            for few in combinations(rounded, size):
                yield {judged: judged.corrected for judged in few}

    def _wrong_histories(self) -> Iterator[History]:
        """Yield wrong numbers to continue with: some errors are followed, the others are only misprints."""
        for roots in _subsets(self.roots):
            yield {judged: judged.grid.values if judged in roots else judged.intended for judged in self.before}
            yield {root: root.grid.values for root in roots}
        for root in self.roots:
            for other in self.before:
                if other is not root and not other.exact:
                    yield {root: root.grid.values, other: other.grid.values}

    def _compare(self, found: Tensor, most: int) -> int:
        """Keep the result that agrees with most cells: the author's own numbers before the new errors."""
        fitting = int(self._fits(found).sum())
        if fitting > most:
            self.closest = found
        return max(fitting, most)

    def _blame(self, history: History, found: Tensor, fits: Tensor) -> None:
        """Mark the unexplained cells that fit a history, where they depend on its errors."""
        fits = fits & self.unexplained
        if not fits.any():
            return
        right = self._follow({judged: torch.where(judged.wrong, judged.corrected, v) for judged, v in history.items()})
        fits &= _differ(found, right)
        if not fits.any():
            return
        guilty: dict[Judged, Tensor] = {}
        for root in self.roots:
            other = self._follow({judged: judged.without(root, values) for judged, values in history.items()})
            guilty[root] = fits & _differ(found, other)
        nobody = fits.clone()  # cells that change only if several errors are corrected together
        for cells in guilty.values():
            nobody &= ~cells
        for root, cells in guilty.items():
            cells = cells | nobody
            if cells.any():
                self.carried[root] = self.carried.get(root, torch.zeros_like(cells)) | cells
        self.unexplained &= ~fits

    def _moved(self, history: History, found: Tensor) -> Tensor | None:
        """Return how far the unprinted digits of a history's matrices could move each cell, added up.

        None if there are too many to vary.
        """
        total = torch.zeros_like(found)
        tokens = len(self.example.tokens)
        for judged, matrix in history.items():
            rows, columns = torch.nonzero(~judged.grid.blank, as_tuple=True)
            if len(rows) > _MAX_PROBED:
                return None
            largest = max(matrix.numel(), found.numel(), tokens * tokens)
            for part in torch.arange(len(rows)).split(max(1, _MAX_BATCH // largest)):
                changed = matrix.repeat(len(part), 1, 1)
                cell = (rows[part], columns[part])
                changed[(torch.arange(len(part)), *cell)] += judged.tolerance[cell]
                total += _distance(self._follow(history | {judged: changed}), found).sum(dim=0)
        return total

    def _follow(self, history: History) -> Tensor:
        """Recompute the claimed matrix from other numbers before it."""
        given = self.example.given_values
        for judged, matrix in history.items():
            where = (judged.claim.step, judged.claim.head)
            given[where] = torch.where(matrix.isnan(), given[where], matrix) if where in given else matrix
        return Calculation(self.example, given).matrix(self.claim.step, self.claim.head or 0)

    def _fits(self, found: Tensor, moved: Tensor | float = 0.0) -> Tensor:
        return agree(self.grid.values, found, self.tolerance + moved)


def _subsets(roots: Sequence[Judged]) -> Iterator[tuple[Judged, ...]]:
    """Yield every set of errors, small ones first; of many errors only the sets of one, of two and of all."""
    sizes = range(1, len(roots) + 1) if 2 ** len(roots) <= _MAX_SUBSETS else (1, 2, len(roots))
    for size in sizes:
        yield from combinations(roots, size)


def _rounded(values: Tensor, grid: Grid) -> Tensor:
    """Round to the digits that most numbers of a printed matrix have."""
    inexact = grid.tolerance[grid.tolerance > 0]
    if not len(inexact):
        return values
    unit = 2 * inexact.mode().values
    return (values / unit).round() * unit


def agree(claimed: Tensor, computed: Tensor, tolerance: Tensor) -> Tensor:
    return _distance(claimed, computed) <= tolerance + ROUNDING * _largest(computed)


def _differ(left: Tensor, right: Tensor) -> Tensor:
    return _distance(left, right) > ROUNDING * _largest(left)


def _largest(matrix: Tensor) -> Tensor:
    return torch.where(matrix.isfinite(), matrix.abs(), 0.0).amax()


def _distance(left: Tensor, right: Tensor) -> Tensor:
    """|left − right|, 0 between equal infinities."""
    return torch.where(left == right, 0.0, (left - right).abs())


def places(cells: Tensor) -> list[Place]:
    return [(row, column) for row, column in torch.nonzero(cells).tolist()]
