"""An explanation of wrong cells, and its sentence for the reader."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from clearhead._utils.text import count_noun
from clearhead.explain._error_propagation import CellIndex, cell_indices
from clearhead.explain.audit import Cause
from clearhead.explain.causes._wrong_matrix import WrongMatrix

_MAX_LISTED = 3  # exceptions or rows in a sentence


@dataclass(frozen=True, eq=False)
class Explanation:
    """A mistake that reproduces some of the new errors of a matrix."""

    name: str
    done: str
    remedy: str
    cells: Bool[Tensor, "rows columns"]  # new errors that it reproduces
    exceptions: Bool[Tensor, "rows columns"]  # written cells that it does not reproduce
    expected: Float[Tensor, "rows columns"] | None = None  # the matrix without the mistake, from the author's numbers
    continued: Float[Tensor, "rows columns"] | None = None  # the unrounded matrix with which the author continues
    is_misprint: bool = False  # the author continues with the expected matrix
    in_some_rows: bool = False  # the mistake was made only in the rows with new errors

    @property
    def is_complete(self) -> bool:
        return not self.exceptions.any()

    def cause(self, wrong: WrongMatrix) -> Cause:
        """Return the cause for the report."""
        cells, exceptions = cell_indices(self.cells), cell_indices(self.exceptions)
        sentences = [f"{self.done}; {self.remedy}."]
        if wrong.shape_is_wrong:
            sentences.append(f"The matrix is {wrong.claimed.shape} instead of {tuple(wrong.computed.shape)}.")
        else:
            first = cells[0]
            seen = f"First seen in {wrong.describe_cell(first)}: {wrong.printed_cell(first)}"
            sentences.append(f"{seen} instead of {self._expected_text(wrong, first)}.")
        if exceptions:
            listed = [wrong.describe_cell(cell) for cell in exceptions[:_MAX_LISTED]]
            more = len(exceptions) - len(listed)
            listed += [f"{more} more"] if more else []
            sentences.append(f"{count_noun(len(exceptions), 'cell')} not explained: {'; '.join(listed)}.")
        return Cause(self.name, " ".join(sentences), tuple(cells), tuple(exceptions))

    def _expected_text(self, wrong: WrongMatrix, cell: CellIndex) -> str:
        """Return the computed number, or the one that follows from earlier numbers of the text if it differs."""
        computed = wrong.rounded_like(cell, float(wrong.computed[cell]))
        if self.expected is None:
            return computed
        expected = wrong.rounded_like(cell, float(self.expected[cell]))
        note = "" if expected == computed else ", which follows from the text's earlier numbers"
        return f"{expected}{note}"
