"""The matrices that claims are about, computed from the example, or from what a text printed before them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.masks import Dense, Mask
from clearhead.worked.claims import JOINT, LEARNED, Claim
from clearhead.worked.example import Example
from clearhead.worked.grids import Grid
from clearhead.worked.steps import NAMES, Trace

ROUNDING = 1e-9  # relative: what float64 may be off where a printed digit stands exactly halfway
_MOST_PROBED = 1000  # beyond so many wrong cells, what their unprinted digits may do is not followed

Place = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Judged:
    """A claimed matrix of the right shape, and which of its cells are wrong."""

    claim: Claim
    grid: Grid
    tolerance: Tensor
    wrong: Tensor


class Recomputed:
    """Everything that can be claimed of an example."""

    def __init__(self, example: Example) -> None:
        self.example = example
        self.trace = example.trace()
        self.added_mask = torch.zeros(len(example.tokens), len(example.tokens), dtype=torch.float64)
        if example.mask is not None:
            allowed = example.mask.dense(*self.added_mask.shape)[0, 0]
            self.added_mask = torch.where(allowed, self.added_mask, -torch.inf)

    def matrix(self, subject: str, head: int, trace: Trace | None = None) -> Tensor | None:
        """A step's result, the mask, or a learned matrix; None if the calculation has no such step."""
        if subject == "mask":
            return self.added_mask
        if subject in LEARNED:
            weight = self.example.weights[subject.removesuffix("_weight")]
            return weight if subject in JOINT else weight[head]
        found = (self.trace if trace is None else trace).named(subject)
        return found[0 if subject in JOINT else head].values if found else None

    def labels(self, subject: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What stands before the rows and over the columns."""
        tokens = self.example.tokens
        if subject == "mask":
            return tokens, tokens
        if subject in LEARNED:
            rows, columns = self.example.weights[subject.removesuffix("_weight")].shape[-2:]
            return self.trace.labels("dimension", rows), self.trace.labels("dimension", columns)
        step = self.trace.named(subject)[0]
        return self.trace.labels(step.rows, step.shape[0]), self.trace.labels(step.columns, step.shape[1])

    def causes(self, claim: Claim, grid: Grid, tolerance: Tensor, wrong: Tensor, before: list[Judged]) -> Causes:
        """Where a wrong number follows from what the text itself printed before, and from which matrix.

        None: from numbers that are all right, but rounded. Tried with ever more of the text's matrices, so that the
        first one to blame is named.
        """
        causes: dict[Place, str | None] = {}
        before = [judged for judged in before if _feeds(judged.claim, claim)]
        for count in range(1, len(before) + 1):
            guilty = [judged for judged in before[:count] if judged.wrong.any()]
            cause = self.name(guilty[-1].claim) if guilty else None
            for follows in self._explanations(claim, grid, tolerance, before[:count]):
                for place in places(wrong & follows):
                    causes.setdefault(place, cause)
                if len(causes) == int(wrong.sum()):
                    return causes
        return causes

    def name(self, claim: Claim) -> str:
        """How a claimed matrix is called in formulas."""
        return "M" if claim.step == "mask" else self.trace.step(claim.step, claim.head).symbol

    def _explanations(self, claim: Claim, grid: Grid, tolerance: Tensor, used: list[Judged]) -> Iterator[Tensor]:
        """Cells that follow from the numbers as printed; then from the wrong ones within their printed digits."""
        yield agree(grid.values, self._from(claim, {judged: judged.grid.values for judged in used}), tolerance)
        probes = [(judged, place) for judged in used for place in places(judged.wrong)]
        if not probes or len(probes) > _MOST_PROBED:
            return
        wrong = {judged: torch.where(judged.wrong, judged.grid.values, torch.nan) for judged in used}
        computed = self._from(claim, wrong)
        moved = torch.zeros_like(computed)
        for judged, place in probes:
            values = wrong[judged].clone()
            values[place] += judged.tolerance[place]
            moved += _distance(self._from(claim, wrong | {judged: values}), computed)
        yield agree(grid.values, computed, tolerance + moved)

    def _from(self, claim: Claim, printed: Mapping[Judged, Tensor]) -> Tensor:
        """The claimed matrix, recomputed from other numbers before it; a NaN among them stands for the computed one."""
        given = {where: grid.values for where, grid in self.example.given.items()}
        mask: Mask | None = self.example.mask
        for judged, values in printed.items():
            where = (judged.claim.step, judged.claim.head)
            if judged.claim.step == "mask":
                mask = Dense(torch.where(values.isnan(), self.added_mask, values) > -torch.inf)
            else:
                given[where] = torch.where(values.isnan(), given[where], values) if where in given else values
        found = self.matrix(claim.step, claim.head or 0, self.example.traced(mask, given))
        assert found is not None  # it was there with the example's own mask, and masks are only exchanged
        return found


Causes = dict[Place, str | None]


def order(claim: Claim) -> tuple[float, int]:
    """The calculation's order; the mask comes right before it is added."""
    place = NAMES.index("masked") - 0.5 if claim.step == "mask" else -1.0
    return NAMES.index(claim.step) if claim.step in NAMES else place, claim.head or 0


def _feeds(earlier: Claim, later: Claim) -> bool:
    """Whether one matrix is read, directly or not, on the way to the other."""
    if {earlier.step, later.step} & {*LEARNED} or later.step == "mask" or order(earlier)[0] >= order(later)[0]:
        return False
    return earlier.head is None or later.head is None or earlier.head == later.head


def agree(claimed: Tensor, computed: Tensor, tolerance: Tensor) -> Tensor:
    finite = computed.abs().nan_to_num(posinf=0.0)
    return _distance(claimed, computed) <= tolerance + ROUNDING * (1 + finite)


def _distance(left: Tensor, right: Tensor) -> Tensor:
    """|left − right|, 0 between equal infinities."""
    return torch.where(left == right, 0.0, (left - right).abs())


def places(cells: Tensor) -> list[Place]:
    return [(row, column) for row, column in torch.nonzero(cells).tolist()]
