"""Which wrong numbers of a text follow from what it printed before: carried on, and no errors of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from clearhead.worked.calculation import Calculation, sources
from clearhead.worked.claims import Claim
from clearhead.worked.example import Example
from clearhead.worked.grids import Grid

ROUNDING = 1e-12  # of a matrix's largest number: what float64 may be off where a digit stands exactly halfway
_MOST_PROBED = 2000  # beyond so many cells, what their unprinted digits may do is not followed

Place = tuple[int, int]
Causes = dict[Place, str | None]


@dataclass(frozen=True, eq=False)
class Judged:
    """A claimed matrix, and which of its cells are wrong."""

    claim: Claim
    symbol: str
    grid: Grid
    tolerance: Tensor
    wrong: Tensor

    def feeds(self, later: Claim) -> bool:
        """Whether it is read, directly or not, on the way to what is claimed later."""
        earlier = self.claim
        same = earlier.head is None or later.head is None or earlier.head == later.head
        return same and earlier.step in sources(later.step)


def causes_of(example: Example, later: Judged, before: Sequence[Judged]) -> Causes:
    """Where a wrong number follows from what the text itself printed before: the matrices to blame, by their symbols.

    None: from numbers that are all right, but rounded. Tried with few of the text's matrices before many.
    """
    before = [judged for judged in before if judged.feeds(later.claim)]
    causes: Causes = {}
    for cause, follows in _explanations(example, later, before):
        for place in places(later.wrong & follows):
            causes.setdefault(place, cause)
        if len(causes) == int(later.wrong.sum()):
            break
    return causes


def _explanations(example: Example, later: Judged, before: list[Judged]) -> Iterator[tuple[str | None, Tensor]]:
    """Which cells follow from some of the text's matrices, and what is to blame."""
    chosen = [few for size in (1, 2) for few in combinations(before, size)]
    chosen += [tuple(before)] if len(before) > 2 else []
    for few in chosen:  # the right numbers as printed, the wrong ones corrected
        values = {judged: torch.where(judged.wrong, torch.nan, judged.grid.values) for judged in few}
        yield None, agree(later.grid.values, _from(example, later, values), later.tolerance)
    guilty = [few for few in chosen if any(judged.wrong.any() for judged in few)]
    for few in guilty:
        values = {judged: judged.grid.values for judged in few}
        yield _blamed(few), agree(later.grid.values, _from(example, later, values), later.tolerance)
    for few in guilty:
        values = {judged: judged.grid.values for judged in few}
        moved = _moved(example, later, values)
        if moved is not None:
            yield _blamed(few), agree(later.grid.values, _from(example, later, values), later.tolerance + moved)


def _blamed(few: Sequence[Judged]) -> str:
    return " and ".join(judged.symbol for judged in few if judged.wrong.any())


def _moved(example: Example, later: Judged, values: dict[Judged, Tensor]) -> Tensor | None:
    """How far the unprinted digits of matrices with errors could move each cell, added up."""
    computed = _from(example, later, values)
    total = torch.zeros_like(computed)
    for judged, matrix in values.items():
        if not judged.wrong.any():
            continue
        cells = places(~judged.grid.blank)
        if len(cells) > _MOST_PROBED:
            return None
        changed = matrix.repeat(len(cells), 1, 1)
        for number, place in enumerate(cells):
            changed[number][place] += judged.tolerance[place]
        total += _distance(_from(example, later, values | {judged: changed}), computed).sum(dim=0)
    return total


def _from(example: Example, later: Judged, values: dict[Judged, Tensor]) -> Tensor:
    """What is claimed later, recomputed from other numbers before it."""
    given = example.given_values
    for judged, matrix in values.items():
        where = (judged.claim.step, judged.claim.head)
        given[where] = torch.where(matrix.isnan(), given[where], matrix) if where in given else matrix
    return Calculation(example, given).matrix(later.claim.step, later.claim.head or 0)


def agree(claimed: Tensor, computed: Tensor, tolerance: Tensor) -> Tensor:
    largest = torch.where(computed.isfinite(), computed.abs(), 0.0).amax()
    return _distance(claimed, computed) <= tolerance + ROUNDING * largest


def _distance(left: Tensor, right: Tensor) -> Tensor:
    """|left − right|, 0 between equal infinities."""
    return torch.where(left == right, 0.0, (left - right).abs())


def places(cells: Tensor) -> list[Place]:
    return [(row, column) for row, column in torch.nonzero(cells).tolist()]
