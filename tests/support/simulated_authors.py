"""Simulated authors who compute attention by hand, print their matrices and make errors, for tests of `check`.

After a misprint, the author continues with the correct number. After a carried error, the author continues with the
printed number. An author continues either with all digits or with rounded numbers. The calculation uses NumPy and
shares no code with `clearhead`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

StepKey = tuple[str, int | None]  # a matrix: step, and head counted from 0
CellKey = tuple[str, int | None, int, int]  # a cell: step, head, row, column
Matrices = dict[StepKey, np.ndarray]

STATED = ("input", "query_weight", "key_weight", "value_weight", "output_weight")
STEPS = ("slice", "query", "key", "value", "scores", "scaled", "masked", "weights", "head_output")  # of each head


@dataclass(frozen=True)
class Error:
    """A wrong number in a printed matrix."""

    where: StepKey
    row: int
    column: int
    printed: float
    carried: bool

    @property
    def cell(self) -> CellKey:
        return *self.where, self.row, self.column


@dataclass(frozen=True)
class Layer:
    """An attention layer and its input. Leading axes broadcast."""

    heads: int
    split: str
    mask: np.ndarray  # 0 or -inf, added to the scores
    causal: bool
    stated: Matrices  # the input and the learned matrices

    @property
    def masked(self) -> bool:
        return bool(np.isinf(self.mask).any())

    def order(self) -> list[StepKey]:
        """Return the keys of all matrices in the order of the calculation."""
        skipped = {"slice": self.split == "project", "masked": not self.masked}
        per_head = [*STATED[1:4], *(name for name in STEPS if not skipped.get(name))]
        heads = [(name, head) for name in per_head for head in range(self.heads)]
        return [("input", None), ("mask", None), *heads, ("concat", None), ("output_weight", None), ("output", None)]

    def compute(self, where: StepKey, working: Matrices) -> np.ndarray:
        """Compute one matrix from the author's values of earlier matrices."""
        name, head = where
        if name in STATED:
            return self.stated[where]
        if name == "mask":
            return self.mask
        if name == "slice":
            width = self.stated["input", None].shape[1] // self.heads
            return working["input", None][..., head * width : (head + 1) * width]
        if name in ("query", "key", "value"):
            read = working["slice", head] if self.split == "slice" else working["input", None]
            return read @ working[f"{name}_weight", head]
        if name == "scores":
            return working["query", head] @ working["key", head].swapaxes(-1, -2)
        if name == "scaled":
            return working["scores", head] / np.sqrt(working["query", head].shape[-1])
        if name == "masked":
            return working["scaled", head] + working["mask", None]
        if name == "weights":
            return softmax(working["masked", head] if self.masked else working["scaled", head] + working["mask", None])
        if name == "head_output":
            return working["weights", head] @ working["value", head]
        if name == "concat":
            outputs = [working["head_output", index] for index in range(self.heads)]
            return np.concatenate(np.broadcast_arrays(*outputs), axis=-1)
        return working["concat", None] @ working["output_weight", None]

    def right(self, given: Matrices | None = None) -> Matrices:
        """Return all matrices without errors and rounding. Given numbers replace computed ones, except NaN."""
        working: Matrices = {}
        for where in self.order():
            value = self.compute(where, working)
            used = (given or {}).get(where, value)
            working[where] = np.where(np.isnan(used), value, used)
        return working


@dataclass
class Author:
    """An author: the printed matrices, their digits and errors, and how the author continues."""

    layer: Layer
    rounds: bool
    digits: dict[StepKey, int]  # of each printed matrix
    blank: dict[StepKey, np.ndarray]
    given: frozenset[StepKey] = frozenset()  # printed matrices that the file gives instead of claiming them
    errors: list[Error] = field(default_factory=list)

    def working(
        self, carried: Collection[Error], *, rounds: bool, nudged: StepKey | None = None
    ) -> tuple[Matrices, Matrices]:
        """Return the author's values, and the printed matrices without errors.

        `nudged` adds a leading axis: entry i changes number i of that matrix by half a unit of its last digit.
        """
        working: Matrices = {}
        printed: Matrices = {}
        for where in self.layer.order():
            value = self.layer.compute(where, working)
            if where in self.digits:
                printed[where] = np.round(value, self.digits[where])
                value = np.where(self.blank[where], value, printed[where]) if rounds else value.copy()
                for error in carried:
                    if error.where == where:
                        value[..., error.row, error.column] = error.printed
                if where == nudged:
                    value = value + self.tolerance(where) * np.eye(value.size).reshape(-1, *value.shape)
            working[where] = value
        return working, printed

    @property
    def carried(self) -> list[Error]:
        return [error for error in self.errors if error.carried]

    def shown(self) -> Matrices:
        """Return the printed matrices with their errors."""
        _, shown = self.working(self.carried, rounds=self.rounds)
        for error in self.errors:
            shown[error.where][error.row, error.column] = error.printed
        return shown

    def tolerance(self, where: StepKey) -> float:
        """Return half a unit of a matrix's last digit. The tolerance of a mask is 0."""
        return 0.0 if where[0] == "mask" else 0.5 * 10.0 ** -self.digits[where]

    def margins(self) -> Matrices:
        """Return twice the largest change of each number by rounding. A smaller error looks like rounding.

        The change is half a unit of its last digit, plus the effects of half a unit in each earlier printed number.
        """
        start = self.working(self.carried, rounds=False)[0]
        total = {where: np.full(start[where].shape, self.tolerance(where)) for where in self.digits}
        wrong = {error.where for error in self.errors}
        for errors in (self.carried, self.errors):
            start = self.working(errors, rounds=False)[0]
            for nudged in self.digits:
                if nudged[0] in (*STATED, "mask", "slice") and nudged not in wrong:
                    continue  # printed exactly
                moved = self.working(errors, rounds=False, nudged=nudged)[0]
                for where in self.digits.keys() - {nudged}:
                    if moved[where].ndim > 2:
                        total[where] += distance(moved[where], start[where]).sum(axis=0)
        return {where: 2 * slack for where, slack in total.items()}


def softmax(scores: np.ndarray) -> np.ndarray:
    """Return the softmax of each row. A row of -inf becomes 0."""
    largest = scores.max(axis=-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isinf(largest), 0.0, largest))
    return powers / np.maximum(powers.sum(axis=-1, keepdims=True), np.finfo(float).tiny)


def distance(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return |left - right|, which is 0 for equal infinities."""
    with np.errstate(invalid="ignore"):
        return np.where(left == right, 0.0, np.abs(left - right))
