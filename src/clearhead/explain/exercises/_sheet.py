"""Content of a sheet that all formats share: sections with given, shown and blank matrices, and the instructions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from clearhead._utils.text import count_noun
from clearhead.explain.exercises.exercise import Exercise
from clearhead.explain.exercises.marks import format_points
from clearhead.explain.render.wording import format_matrix, step_heading, step_sentence
from clearhead.explain.steps import Operand, Step, StepKey

_MORE_GIVEN_DIGITS = 2  # answers are computed from given numbers, such as sinusoidal positions
WITHHELD = "Not shown, because it repeats numbers that you compute."


@dataclass(frozen=True)
class SheetMatrix:
    """One matrix of a sheet. Blank cells are None."""

    symbol: str
    latex: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[str | None, ...], ...]

    @property
    def is_blank(self) -> bool:
        return self.cells[0][0] is None


@dataclass(frozen=True)
class SheetSection:
    """One step of a sheet."""

    id: str  # such as "weights-1", or "output" for a step of all heads
    key: StepKey
    heading: str
    formula: str
    latex: str
    sentence: str
    points: str  # such as "64 points"; empty if the step is not blank
    matrices: tuple[SheetMatrix, ...]  # given matrices, then the result; without the result if it is withheld
    withheld: bool


def instructions(exercise: Exercise) -> str:
    """Return what a student has to do, and which answers are accepted."""
    total = sum(exercise.possible_points(key) for key in exercise.blanks)
    return (
        f"Compute the blank cells. Round each answer to {count_noun(exercise.digits, 'digit')} after the point, and"
        f" continue with your numbers: an answer that follows from an earlier mistake still counts."
        f" An answer may differ from the exact number by {exercise.tolerance:.{exercise.digits}f}."
        f" {_points_text(total)} in all; sheet {exercise.seed}."
    )


def sections(exercise: Exercise) -> Iterator[SheetSection]:
    """Yield the steps of an exercise without any solution."""
    for step in exercise.trace:
        key = (step.name, step.head)
        blank, withheld = key in exercise.blanks, key in exercise.withheld
        name = step.name if step.head is None else f"{step.name}-{step.head + 1}"
        matrices = [_matrix(exercise, operand) for operand in step.operands if operand.new]
        if not withheld:
            matrices.append(_matrix(exercise, step, blank=blank))
        yield SheetSection(
            name,
            key,
            step_heading(step, exercise.trace),
            step.formula,
            step.latex,
            step_sentence(step, exercise.trace),
            _points_text(exercise.possible_points(key)) if blank else "",
            tuple(matrices),
            withheld,
        )


def _matrix(exercise: Exercise, matrix: Step | Operand, *, blank: bool = False) -> SheetMatrix:
    rows, columns = matrix.values.shape
    is_given = isinstance(matrix, Operand) or (matrix.name, matrix.head) not in exercise.steps
    digits = exercise.digits + (_MORE_GIVEN_DIGITS if is_given else 0)
    cells = tuple(map(tuple, format_matrix(matrix.values, digits)))
    return SheetMatrix(
        matrix.symbol,
        matrix.latex_symbol if isinstance(matrix, Step) else matrix.latex,
        exercise.trace.labels(matrix.rows, rows),
        exercise.trace.labels(matrix.columns, columns),
        ((None,) * columns,) * rows if blank else cells,
    )


def _points_text(points: float) -> str:
    return "1 point" if points == 1 else f"{format_points(points)} points"
