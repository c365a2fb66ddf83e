"""Slips in single numbers: signs, exchanged digits, numbers cut off or rounded too early, sums of weights."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead._utils.text import count_noun
from clearhead.explain._claims import SHARED_MATRICES, head_count
from clearhead.explain._error_propagation import FLOAT64_ROUNDING, agree, cell_indices
from clearhead.explain._recompute import OPERANDS, Recomputation
from clearhead.explain.causes._explanation import Explanation
from clearhead.explain.causes._wrong_matrix import WrongMatrix
from clearhead.explain.steps import STEP_NAMES

_SETTLED = 10  # tolerances by which the correct number may depend on the author's start
_EARLY_DIGITS = (0, 1, 2, 3, 4)
_ROUNDED_STEPS = frozenset(STEP_NAMES) - {"input", "slice"}  # a slice copies the input


def cell_slips(wrong: WrongMatrix) -> Iterator[Explanation]:
    """Yield slips in single cells: a wrong sign, or two neighboring digits exchanged."""
    results = _likely_results(wrong)
    settled = wrong.new_errors.clone()  # cells whose correct number depends little on the author's start
    for result in results[1:]:
        settled &= agree(result, results[0], _SETTLED * wrong.tolerance)
    # exchanged digits must be those of one number: one rounded in several ways would fit by coincidence
    for (name, done, remedy, has_slip), candidates in zip(_CELL_SLIPS, (results, results[:1]), strict=True):
        correct = max(candidates, key=lambda result, has=has_slip: int((settled & has(wrong, result)).sum()))
        cells = settled & has_slip(wrong, correct)
        if cells.any():
            where = count_noun(int(cells.sum()), "cell")
            yield Explanation(name, done.format(where), remedy, cells, wrong.new_errors & ~cells, correct)


def _likely_results(wrong: WrongMatrix) -> list[Float[Tensor, "rows columns"]]:
    """Return the matrix for the starts that reproduce the most cells, the exact start first."""
    results = [_result(wrong, start) for start in wrong.starts]
    matches = [int(wrong.matches(result).sum()) for result in results]
    return [result for result, count in zip(results, matches, strict=True) if count == max(matches)]


def _result(wrong: WrongMatrix, start: Recomputation) -> Float[Tensor, "rows columns"]:
    return start.matrix(wrong.step, wrong.head or 0)


def _has_wrong_sign(wrong: WrongMatrix, correct: Tensor) -> Bool[Tensor, "rows columns"]:
    values = wrong.claimed.values
    return wrong.matches(-correct) & (values.abs() > wrong.tolerance) & values.isfinite()


def _has_swapped_digits(wrong: WrongMatrix, correct: Tensor) -> Bool[Tensor, "rows columns"]:
    cells = torch.zeros_like(wrong.new_errors)
    for cell in cell_indices(wrong.new_errors & correct.isfinite() & wrong.claimed.values.isfinite()):
        expected = wrong.rounded_like(cell, float(correct[cell]))
        cells[cell] = _is_digit_swap(wrong.printed_cell(cell), expected)
    return cells


def _is_digit_swap(printed: str, expected: str) -> bool:
    """Return whether two texts differ only in the order of two neighboring digits."""
    if len(printed) != len(expected) or printed.find(".") != expected.find("."):
        return False
    left, right = printed.replace(".", ""), expected.replace(".", "")
    different = [index for index, (a, b) in enumerate(zip(left, right, strict=True)) if a != b]
    if len(different) != 2 or different[1] != different[0] + 1:
        return False
    first, second = different
    return left[first] == right[second] and left[second] == right[first] and left[first].isdigit()


_CELL_SLIPS = (
    ("sign", "The sign is wrong in {}", "change it", _has_wrong_sign),
    ("digits exchanged", "Two neighboring digits are exchanged in {}", "exchange them again", _has_swapped_digits),
)


def matrix_slips(wrong: WrongMatrix) -> Iterator[Explanation]:
    """Yield slips that reproduce every written cell of a matrix: cut off, or rounded too early."""
    if any(_is_truncated(wrong, _result(wrong, start)) for start in wrong.starts):
        done = "The numbers were cut off instead of rounded"
        yield _complete(wrong, "cut off instead of rounded", done, "round each to the nearest last digit")
    for digits in _EARLY_DIGITS:
        if any(_reproduces(wrong, _result(wrong, rounded)) for rounded in _rounded_starts(wrong, digits)):
            done = f"Earlier numbers were rounded to {count_noun(digits, 'digit')} after the point"
            yield _complete(
                wrong, "rounded too early", done, "continue with more digits, and round only what is printed"
            )
            return


def _complete(wrong: WrongMatrix, name: str, done: str, remedy: str) -> Explanation:
    return Explanation(name, done, remedy, wrong.new_errors, torch.zeros_like(wrong.new_errors))


def _reproduces(wrong: WrongMatrix, result: Tensor) -> bool:
    return bool((wrong.claimed.blank | wrong.matches(result)).all())


def _is_truncated(wrong: WrongMatrix, correct: Tensor) -> bool:
    """Return whether every written number is the correct one without the digits after the last."""
    unit = 2 * wrong.claimed.tolerance
    if wrong.step == "mask" or not (unit[wrong.written & wrong.claimed.values.isfinite()] > 0).all():
        return False
    cut = torch.trunc(correct / unit * (1 + FLOAT64_ROUNDING)) * unit
    cut = torch.where(correct.isinf(), correct, cut)
    return bool((wrong.claimed.blank | agree(wrong.claimed.values, cut, torch.zeros_like(unit))).all())


class _RoundedCalculation(Recomputation):
    """Every matrix as computed by an author who rounds each earlier matrix."""

    def __init__(self, start: Recomputation, step: str, digits: int) -> None:
        given = {
            key: values.round(decimals=digits) if key[0] in _ROUNDED_STEPS else values
            for key, values in start.given.items()
        }
        super().__init__(start.example, given)
        self.step, self.digits = step, digits

    def _compute(self, name: str, head: int) -> Tensor:
        values = super()._compute(name, head)
        return values.round(decimals=self.digits) if name in _ROUNDED_STEPS - {self.step} else values


def _rounded_starts(wrong: WrongMatrix, digits: int) -> Iterator[Recomputation]:
    """Yield calculations with all earlier matrices rounded, with the operands of this one, or with one operand."""
    operands = [name for name in OPERANDS.get(wrong.step, ()) if name in _ROUNDED_STEPS]
    for start in wrong.starts:
        yield _RoundedCalculation(start, wrong.step, digits)
        nearest = {
            (name, None if name in SHARED_MATRICES else head): start.matrix(name, head).round(decimals=digits)
            for name in operands
            for head in range(head_count(name, start.example.heads, start.example.kv_heads))
        }
        yield Recomputation(start.example, {**start.given, **nearest})
        for name in operands if len(operands) > 1 else ():
            only = {key: values for key, values in nearest.items() if key[0] == name}
            yield Recomputation(start.example, {**start.given, **only})


def row_sum_slips(wrong: WrongMatrix, explained: Bool[Tensor, "rows columns"]) -> Iterator[Explanation]:
    """Yield one explanation if rows of weights with unexplained errors do not sum to 1."""
    if wrong.step != "weights" or wrong.shape_is_wrong:
        return
    values = wrong.claimed.values
    sums, slack = values.sum(dim=1), wrong.tolerance.sum(dim=1)
    should_be_1 = (wrong.computed.sum(dim=1) - 1).abs() < 0.5  # a row without visible keys sums to 0
    rows = should_be_1 & ((sums - 1).abs() > slack + FLOAT64_ROUNDING)  # False for a row with blanks
    cells = wrong.new_errors & ~explained & rows[:, None]
    indices = cells.any(dim=1).nonzero().flatten().tolist()
    if not indices:
        return
    totals = ", ".join(f"row {wrong.label(0, row)} sums to {float(sums[row]):.4g}" for row in indices)
    done = totals[0].upper() + totals[1:]
    remedy = "the weights of each row sum to 1"
    yield Explanation("row does not sum to 1", done, remedy, cells, wrong.new_errors & ~cells)
