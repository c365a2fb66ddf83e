"""Values from which an author may have computed a matrix: exact, as printed, corrected, or with an earlier mistake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from clearhead.explain._error_propagation import CheckedMatrix
from clearhead.explain._recompute import Recomputation
from clearhead.explain.example import Example
from clearhead.explain.steps import StepKey

_MAX_SINGLE_ERRORS = 4  # with more earlier errors, each one alone is not tried


def author_starts(
    example: Example,
    given: Mapping[StepKey, Tensor],
    earlier: Sequence[CheckedMatrix],
    step: str,
) -> list[Recomputation]:
    """Return the calculations that the author may have continued, the exact one first.

    Args:
        example: the worked example.
        given: matrices that the example gives.
        earlier: matrices that the text prints earlier.
        step: the step of the matrix in question.
    """
    roots = [matrix for matrix in earlier if matrix.new_errors.any()]
    claimed = {matrix: matrix.claimed.values for matrix in earlier}
    mistaken = {root: root.mistaken for root in roots if root.mistaken is not None}
    wrong = {root: root.claimed.values for root in roots}
    # unrounded numbers first: an author who rounds continues with the claimed matrix anyway
    assumptions: list[dict[CheckedMatrix, Tensor]] = [{}, mistaken, {**wrong, **mistaken}, wrong]
    if len(roots) <= _MAX_SINGLE_ERRORS:
        assumptions += [{root: mistaken.get(root, wrong[root])} for root in roots]  # the other errors are misprints
    assumptions += [
        claimed,
        {matrix: values for matrix, values in claimed.items() if matrix.claim.step != step},  # without other heads
        {matrix: matrix.intended for matrix in earlier},
        {matrix: matrix.corrected for matrix in earlier},
        {**claimed, **mistaken},
    ]
    starts, seen = [], set()
    for assumed in assumptions:
        fingerprint = frozenset((matrix, id(values)) for matrix, values in assumed.items())
        if fingerprint not in seen:
            seen.add(fingerprint)
            starts.append(Recomputation(example, _with_assumed(given, assumed)))
    return starts


def _with_assumed(given: Mapping[StepKey, Tensor], assumed: Mapping[CheckedMatrix, Tensor]) -> dict[StepKey, Tensor]:
    values = dict(given)
    for matrix, cells in assumed.items():
        key = (matrix.claim.step, matrix.claim.head)
        values[key] = torch.where(cells.isnan(), values[key], cells) if key in values else cells
    return values
