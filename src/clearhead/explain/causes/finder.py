"""Finder of causes for the matrices of one text, which are checked in the order of the calculation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jaxtyping import Bool, Float
from torch import Tensor

from clearhead.explain._error_propagation import CheckedMatrix
from clearhead.explain._printed_matrix import PrintedMatrix
from clearhead.explain.audit import Cause
from clearhead.explain.causes._search import explain_errors
from clearhead.explain.causes._starts import author_starts
from clearhead.explain.causes._wrong_matrix import WrongMatrix
from clearhead.explain.example import Example
from clearhead.explain.steps import STEP_NAMES, Axis, StepKey, Trace


class CauseFinder:
    """Finder of the usual mistakes that explain the new errors of a text's matrices."""

    def __init__(self, example: Example, trace: Trace) -> None:
        self.example, self.trace = example, trace

    def of_matrix(
        self, checked: CheckedMatrix, earlier: Sequence[CheckedMatrix]
    ) -> tuple[tuple[Cause, ...], CheckedMatrix]:
        """Return the causes of a matrix's new errors, and the matrix with its values under the first cause."""
        if not checked.new_errors.any():
            return (), checked
        key = (checked.claim.step, checked.claim.head)
        wrong = self._wrong_matrix(key, checked.symbol, checked.claimed, checked.tolerance, checked.new_errors, earlier)
        explanations = explain_errors(wrong)
        causes = tuple(entry.cause(wrong) for entry in explanations)
        best = next((entry for entry in explanations if entry.is_complete and entry.continued is not None), None)
        if best is not None and best.continued is not None:
            checked = (
                checked.misprinted(best.continued) if best.is_misprint else replace(checked, mistaken=best.continued)
            )
        return causes, checked

    def of_values(
        self,
        key: StepKey,
        symbol: str,
        claimed: PrintedMatrix,
        cells: Bool[Tensor, "rows columns"],
        earlier: Sequence[CheckedMatrix] = (),
    ) -> tuple[Cause, ...]:
        """Return the causes of wrong cells in a matrix of the wrong shape, or in a given matrix."""
        if not cells.any():
            return ()
        wrong = self._wrong_matrix(key, symbol, claimed, claimed.tolerance, cells, earlier)
        return tuple(explanation.cause(wrong) for explanation in explain_errors(wrong))

    def _wrong_matrix(
        self,
        key: StepKey,
        symbol: str,
        claimed: PrintedMatrix,
        tolerance: Float[Tensor, "rows columns"],
        new_errors: Bool[Tensor, "rows columns"],
        earlier: Sequence[CheckedMatrix],
    ) -> WrongMatrix:
        step, head = key
        given = {name: values for name, values in self.example.given_values.items() if name != key}
        earlier = [matrix for matrix in earlier if (matrix.claim.step, matrix.claim.head) != key]
        rows, columns = axes = matrix_axes(self.trace, step)
        return WrongMatrix(
            self.example,
            step,
            head,
            symbol,
            claimed,
            tolerance,
            new_errors,
            author_starts(self.example, given, earlier, step),
            frozenset((m.claim.step, m.claim.head) for m in earlier if not m.claimed.blank.any()),
            axes,
            (self.trace.labels(rows, claimed.shape[0]), self.trace.labels(columns, claimed.shape[1])),
        )


def matrix_axes(trace: Trace, name: str) -> tuple[Axis, Axis]:
    """Return the meaning of the rows and columns of a matrix that can be claimed."""
    if name in STEP_NAMES:
        step = trace.named(name)[0]
        return step.rows, step.columns
    return ("token", "memory") if name == "mask" else ("dimension", "dimension")
