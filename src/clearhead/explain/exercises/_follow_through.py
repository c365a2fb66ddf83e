"""Verdicts on a student's numbers, with credit for numbers that follow from the student's earlier ones.

A number is right if it equals the exact one, or follows from right numbers as printed. It is carried if it follows from
earlier numbers of which some are wrong. Every other number is wrong. The self-check of the page has the same rules.

Rounding alone never makes a number carried. As long as all earlier numbers are right, an answer may differ by one unit
from what follows from them: from the exact, the printed or the student's numbers, rounded on the way or not. After an
error, the unrounded numbers of the student are known only to half a unit of the printed digits. A carried number may
differ by one unit, or by half a unit and what these digits can change, whichever is more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead.explain._error_propagation import agree
from clearhead.explain._recompute import Recomputation
from clearhead.explain.exercises.exercise import Exercise
from clearhead.explain.steps import Step, StepKey

Matrix = Float[Tensor, "rows columns"]
Cells = Bool[Tensor, "rows columns"]
_SMALLEST_CHANGE = 1e-9  # a cell that changes less does not depend on an error


@dataclass(eq=False)
class _Version:
    """Numbers with which a student may have continued. Cells that are not written follow from the earlier ones."""

    written: Mapping[StepKey, Matrix]
    rounds: bool = False  # the student rounds numbers that are not written
    values: dict[StepKey, Matrix] = field(default_factory=dict)
    uncertainty: dict[StepKey, Matrix] = field(default_factory=dict)  # possible change by digits that are not printed
    without_errors: dict[StepKey, Matrix] = field(default_factory=dict)  # equal to `values` if no earlier cell is wrong


class FollowThrough:
    """Comparison of a student's matrices with the exact ones and with each other, in the order of the calculation."""

    def __init__(self, exercise: Exercise, answers: Mapping[StepKey, Matrix]) -> None:
        self.exercise = exercise
        self.exact = {key: step.values for key, step in exercise.steps.items()}
        self.operands = {key: operand_keys(exercise, step) for key, step in exercise.steps.items()}
        self.half_unit = 0.5 * 10.0**-exercise.digits
        self.written = {key: printed_values(exercise, key) for key in exercise.shown} | dict(answers)
        self.right: dict[StepKey, Cells] = {}
        self.carried: dict[StepKey, Cells] = {}
        self.sound: dict[StepKey, Cells] = {}  # right, and independent of errors
        # a student continues from the shown steps, or ignores them and continues from the answers alone
        self.versions = (_Version(self.written), _Version(answers), _Version(answers, rounds=True))
        for key in exercise.steps:
            if key in answers:
                self._judge(key, answers[key])
            for version in self.versions:
                self._continue(version, key)

    def _judge(self, key: StepKey, answers: Matrix) -> None:
        unit = torch.full_like(answers, self.exercise.tolerance)
        right = agree(answers, self.exact[key], unit)
        carried, affected = torch.zeros_like(right), torch.zeros_like(right)
        certain = {operand: torch.zeros_like(self.exact[operand]) for operand in self.operands[key]}
        for version in self.versions:
            for chosen in self._choices(key):
                correct = self._recompute(key, self._pick(key, chosen, version.without_errors, self.exact))
                right |= agree(answers, correct, unit)
                operands = self._pick(key, chosen, version.values, self.exact)
                result = self._recompute(key, operands)
                dependent = _differ(result, correct)
                affected |= dependent
                if dependent.any():
                    spread = self._spread(key, operands, self._pick(key, chosen, version.uncertainty, certain), result)
                    carried |= dependent & agree(answers, result, torch.maximum(unit, spread + self.half_unit))
        self.right[key], self.carried[key], self.sound[key] = right, carried & ~right, right & ~affected

    def _continue(self, version: _Version, key: StepKey) -> None:
        """Add a step to a version: its written numbers, and computed ones where none are written."""
        chosen = (True,) * len(self.operands[key])
        operands = self._pick(key, chosen, version.values, self.exact)
        computed = self._recompute(key, operands)
        correct = self._recompute(key, self._pick(key, chosen, version.without_errors, self.exact))
        written = version.written.get(key, torch.full_like(computed, torch.nan))
        blank = written.isnan()
        spread = torch.full_like(computed, self.half_unit)
        if blank.any():
            spread = self._spread(key, operands, version.uncertainty, computed)
            # the student may have rounded a number that is not written and follows from an error
            spread += self.half_unit * _differ(computed, correct)
        if version.rounds:
            computed, correct = (_round_half_up(values, self.exercise.digits) for values in (computed, correct))
        without_errors = torch.where(self.sound[key], written, self.exact[key]) if key in self.sound else written
        version.values[key] = torch.where(blank, computed, written)
        version.uncertainty[key] = torch.where(blank, spread, self.half_unit)
        version.without_errors[key] = torch.where(blank, correct, without_errors)

    def _choices(self, key: StepKey) -> Iterator[tuple[bool, ...]]:
        """Yield for each operand whether the student continued with it, or with the exact one."""
        count = len(self.operands[key])
        yield (True,) * count
        if count == 2 and key[0] != "concat":
            yield from ((True, False), (False, True))

    def _pick(
        self, key: StepKey, chosen: tuple[bool, ...], first: Mapping[StepKey, Matrix], second: Mapping[StepKey, Matrix]
    ) -> dict[StepKey, Matrix]:
        """Return the operands of a step, from `first` where chosen and from `second` elsewhere."""
        return {
            operand: (first if is_first else second)[operand]
            for operand, is_first in zip(self.operands[key], chosen, strict=True)
        }

    def _spread(
        self, key: StepKey, operands: Mapping[StepKey, Matrix], uncertainty: Mapping[StepKey, Matrix], result: Matrix
    ) -> Matrix:
        """Return how much each cell can change if each operand changes by its uncertainty."""
        total = torch.zeros_like(result)
        for operand, values in operands.items():
            rows, columns = torch.nonzero(uncertainty[operand], as_tuple=True)
            if len(rows):
                varied = values.repeat(len(rows), 1, 1)
                varied[torch.arange(len(rows)), rows, columns] += uncertainty[operand][rows, columns]
                change = (self._recompute(key, {**operands, operand: varied}) - result).abs()
                total += change.nan_to_num(nan=0.0, posinf=torch.inf).sum(dim=0)  # −∞ minus −∞ is NaN
        return total

    def _recompute(self, key: StepKey, operands: Mapping[StepKey, Tensor]) -> Tensor:
        return Recomputation(self.exercise.example, operands).matrix(key[0], key[1] or 0)


def _differ(left: Matrix, right: Matrix) -> Cells:
    return ~agree(left, right, torch.full_like(left, _SMALLEST_CHANGE))


def _round_half_up(values: Matrix, digits: int) -> Matrix:
    """Round as students do: 0.125 to 0.13, and −0.125 to −0.13. The page rounds in the same way."""
    return values.sign() * (values.abs() * 10.0**digits + 0.5 + _SMALLEST_CHANGE).floor() / 10.0**digits


def operand_keys(exercise: Exercise, step: Step) -> tuple[StepKey, ...]:
    """Return the earlier steps that a step is computed from, without the input."""
    keys = {earlier.symbol: key for key, earlier in exercise.steps.items()}
    symbols = [operand.symbol for operand in step.operands if not operand.new]
    symbols = [symbol if symbol in keys else symbol.removesuffix("ᵀ") for symbol in symbols]  # the operand Kᵀ is K
    return tuple(keys[symbol] for symbol in symbols if symbol in keys)


def printed_values(exercise: Exercise, key: StepKey) -> Matrix:
    """Return the rounded numbers of a shown step."""
    rows = [[float(cell.replace("∞", "inf")) for cell in row] for row in exercise.printed(key)]
    return torch.tensor(rows, dtype=torch.float64)
