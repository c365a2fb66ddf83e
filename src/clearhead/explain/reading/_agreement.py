"""Ambiguous scores: the reading that agrees with the computed numbers, if exactly one does."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import torch

from clearhead.explain._printed_matrix import BLANK, read_matrix
from clearhead.explain.example import Example
from clearhead.explain.reading._grids import Grid
from clearhead.explain.reading._matching import Question

_DECIDED_BY_NUMBERS = {"scores", "scaled"}


def is_decidable(question: Question) -> bool:
    """Return whether computed numbers can answer a question: scores, before or after scaling."""
    steps = {choice.partition(" ")[0] for choice in question.choices}
    return question.assumed is not None and steps == _DECIDED_BY_NUMBERS


def agreeing_answers(example: Example, questions: Sequence[tuple[Question, Grid, int | None]]) -> dict[int, str]:
    """Return the answers to questions with exactly one choice that agrees with the calculation of an example.

    Args:
        example: the calculation.
        questions: questions, each with its matrix, and with its row, counted from 0, if the matrix is a single row.
    """
    trace = example.trace()
    computed = {(step.name, step.head): step.values for step in trace}
    answers = {}
    for question, grid, row in questions:
        agreeing = []
        for choice in question.choices:
            step, _, head = choice.partition(" ")
            values = computed.get((step, int(head) - 1))
            if values is not None and _agrees(grid, values if row is None else values[row : row + 1]):
                agreeing.append(choice)
        if len(agreeing) == 1:
            answers[question.matrix] = agreeing[0]
    return answers


def _agrees(grid: Grid, values: torch.Tensor) -> bool:
    if grid.is_blank or grid.shape != tuple(values.shape):
        return False
    cells = [[cell if cell == BLANK else Decimal(cell) for cell in row] for row in grid.cells]
    printed = read_matrix("scores", cells, blanks=True, infinite=True)
    near = (printed.values - values).abs() <= printed.tolerance * (1 + 1e-9)
    return bool((near | printed.blank).all())
