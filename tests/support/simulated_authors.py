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

STATED = (
    "input", "query_weight", "key_weight", "value_weight", "output_weight",
    "memory", "query_bias", "key_bias", "value_bias", "output_bias",
)  # fmt: skip
KEY_HEAD_STEPS = ("key_weight", "value_weight", "key_bias", "value_bias", "key", "value")
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
    stated: Matrices  # the input, the learned matrices, and the memory and biases if there are some
    kv_heads: int | None = field(default=None, kw_only=True)  # default: heads
    scales: bool = field(default=True, kw_only=True)  # divides the scores by √d_k

    @property
    def masked(self) -> bool:
        return bool(np.isinf(self.mask).any())

    def order(self) -> list[StepKey]:
        """Return the keys of all matrices in the order of the calculation."""
        skipped = {"slice": self.split == "project", "scaled": not self.scales, "masked": not self.masked}
        biases = [name for name in STATED[6:9] if (name, 0) in self.stated]
        per_head = [*STATED[1:4], *biases, *(name for name in STEPS if not skipped.get(name))]
        heads = [(name, head) for name in per_head for head in range(self.count(name))]
        memory, bias = ([key] if key in self.stated else [] for key in (("memory", None), ("output_bias", None)))
        output = [("concat", None), ("output_weight", None), *bias, ("output", None)]
        return [("input", None), ("mask", None), *memory, *heads, *output]

    def count(self, name: str) -> int:
        """Return how many matrices of a kind there are, one for each head or one for each key head."""
        return self.kv_heads or self.heads if name in KEY_HEAD_STEPS else self.heads

    def compute(self, where: StepKey, working: Matrices) -> np.ndarray:
        """Compute one matrix from the author's values of earlier matrices."""
        name, head = where
        if name in STATED:
            return self.stated[where]
        if name == "mask":
            return self.mask
        if name == "slice":
            return columns(working["input", None], head, self.heads)
        if name in ("query", "key", "value"):
            return self._read(name, head, working) @ working[f"{name}_weight", head] + working.get(
                (f"{name}_bias", head), 0
            )
        key_head = 0 if head is None else head * self.count("key") // self.heads
        if name == "scores":
            return working["query", head] @ working["key", key_head].swapaxes(-1, -2)
        if name == "scaled":
            return working["scores", head] / np.sqrt(working["query", head].shape[-1])
        if name == "masked":
            return working["scaled" if self.scales else "scores", head] + working["mask", None]
        if name == "weights":
            unmasked = working["scaled" if self.scales else "scores", head]
            return softmax(working["masked", head] if self.masked else unmasked + working["mask", None])
        if name == "head_output":
            return working["weights", head] @ working["value", key_head]
        if name == "concat":
            outputs = [working["head_output", index] for index in range(self.heads)]
            return np.concatenate(np.broadcast_arrays(*outputs), axis=-1)
        return working["concat", None] @ working["output_weight", None] + working.get(("output_bias", None), 0)

    def _read(self, name: str, head: int, working: Matrices) -> np.ndarray:
        """Return the columns of the input or of the memory that Q, K or V are computed from."""
        source = working["input" if name == "query" or ("memory", None) not in self.stated else "memory", None]
        if self.split == "project":
            return source
        if source is working["input", None] and self.count(name) == self.heads:
            return working["slice", head]
        return columns(source, head, self.count(name))

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


def columns(matrix: np.ndarray, head: int, heads: int) -> np.ndarray:
    """Return the columns that one head reads."""
    width = matrix.shape[-1] // heads
    return matrix[..., head * width : (head + 1) * width]


def softmax(scores: np.ndarray) -> np.ndarray:
    """Return the softmax of each row. A row of -inf becomes 0."""
    largest = scores.max(axis=-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isinf(largest), 0.0, largest))
    return powers / np.maximum(powers.sum(axis=-1, keepdims=True), np.finfo(float).tiny)


def distance(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return |left - right|, which is 0 for equal infinities."""
    with np.errstate(invalid="ignore"):
        return np.where(left == right, 0.0, np.abs(left - right))
