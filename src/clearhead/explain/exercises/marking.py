"""Marking of answer files, one by one or all files of a folder."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import torch
from torch import Tensor

from clearhead._utils.checks import check_path, describe
from clearhead.explain._claims import Claim, heads_that_use
from clearhead.explain._printed_matrix import BLANK, PrintedMatrix
from clearhead.explain.audit import Cause
from clearhead.explain.checking import check
from clearhead.explain.exercises._answers import Answers, read_matrix, too_few_digits
from clearhead.explain.exercises._changes import changed_exercise
from clearhead.explain.exercises._follow_through import FollowThrough
from clearhead.explain.exercises.answer_file import AnswerFile, read_answers
from clearhead.explain.exercises.exercise import Exercise
from clearhead.explain.exercises.marks import CellMark, ClassMarks, Marks, StepMarks, UnreadableFile
from clearhead.explain.render.wording import step_heading
from clearhead.explain.steps import StepKey

FilePath = str | os.PathLike[str]


def mark(file: FilePath, exercise: FilePath | None = None) -> Marks:
    """Mark a student's answers.

    An answer gets full credit if it is right, and also if it follows from the student's earlier answers. It may differ
    by one unit of the last digit that the exercise asks for.

    Args:
        file: the student's answer file, in TOML.
        exercise: the teacher's exercise file, or a folder of them, one for each seed. The given numbers of the student
            must equal those of the exercise (default: the student's file states the exercise).

    Raises:
        ValueError: a file cannot be read, or the student's given numbers are not those of the exercise.
    """
    return _mark(check_path("file", file), _Exercises(exercise))


def mark_folder(
    folder: FilePath, exercise: FilePath | None = None, *, progress: Callable[[int, int], None] | None = None
) -> ClassMarks:
    """Mark all TOML files of a folder, sorted by name. A file that cannot be read does not stop the others.

    Args:
        folder: folder of answer files.
        exercise: the teacher's exercise file, or a folder of them, as for `mark()`.
        progress: called with the number of files done and the number of all files.

    Raises:
        ValueError: there is no TOML file in the folder, or the teacher's exercise cannot be read.
    """
    if progress is not None and not callable(progress):
        raise TypeError(f"progress is {describe(progress)}; expected a function of two counts")
    files = _toml_files(check_path("folder", folder))
    exercises = _Exercises(exercise)
    entries: list[Marks | UnreadableFile] = []
    for done, file in enumerate(files, 1):
        try:
            entries.append(_mark(file, exercises))
        except (ValueError, OSError) as error:
            # without the folder, because marks are shared
            entries.append(
                UnreadableFile(file.name, str(error).removeprefix(f"{file}: ").replace(str(file), file.name))
            )
        if progress is not None:
            progress(done, len(files))
    return ClassMarks(
        tuple(entry for entry in entries if isinstance(entry, Marks)),
        tuple(entry for entry in entries if isinstance(entry, UnreadableFile)),
    )


def _toml_files(folder: FilePath) -> list[Path]:
    if not Path(folder).is_dir():
        raise ValueError(f"{folder}: there is no such folder")
    files = sorted(path for path in Path(folder).iterdir() if path.suffix == ".toml")
    if not files:
        raise ValueError(f"{folder}: there is no TOML file in this folder; expected answer files")
    return files


class _Exercises:
    """Exercises of the teacher: none, one for all students, or one for each seed."""

    def __init__(self, source: FilePath | None) -> None:
        self.source = source
        self.by_seed: dict[int, AnswerFile] | None = None
        if source is None:
            return
        if not Path(check_path("exercise", source)).is_dir():
            self.single = read_answers(source)
            return
        self.by_seed = {}
        for path in _toml_files(source):
            exercise = read_answers(path)
            if self.by_seed.setdefault(exercise.exercise.seed, exercise) is not exercise:
                raise ValueError(f"{path}: a second exercise with seed {exercise.exercise.seed}; expected one")

    def exercise_of(self, student: AnswerFile) -> AnswerFile:
        """Return the exercise that a student was given."""
        if self.source is None:
            return student
        if self.by_seed is None:
            return self.single
        seed = student.exercise.seed
        if seed not in self.by_seed:
            raise ValueError(f"exercise.seed is {seed}; {Path(self.source).name} has no exercise with that seed")
        return self.by_seed[seed]


def _mark(file: FilePath, exercises: _Exercises) -> Marks:
    student = read_answers(file)
    teacher = exercises.exercise_of(student)
    if problem := changed_exercise(student, teacher):
        raise ValueError(f"{file}: {problem}")
    exercise = teacher.exercise
    answers = {}
    for key in exercise.blanks:
        written = student.answers.get(key)
        if written is None and exercise.example.heads == 1 and key[1] == 0:
            written = student.answers.get((key[0], None))  # the head may be left out if there is only one
        answers[key] = read_matrix(exercise, key, written)
    compared = FollowThrough(exercise, {key: matrix.values for key, matrix in answers.items()})
    causes = _causes(exercise, answers, compared)
    return Marks(
        student.student or Path(file).stem,
        Path(file).name,
        exercise.title,
        exercise.seed,
        exercise.digits,
        exercises.source is not None,
        tuple(_step_marks(exercise, key, answers[key], compared, causes.get(key, ())) for key in exercise.blanks),
    )


def _step_marks(
    exercise: Exercise, key: StepKey, answers: Answers, compared: FollowThrough, causes: tuple[Cause, ...]
) -> StepMarks:
    step = exercise.steps[key]
    rows, columns = (
        exercise.trace.labels(axis, size) for axis, size in zip((step.rows, step.columns), step.shape, strict=True)
    )
    right, carried, blank = compared.right[key], compared.carried[key], answers.blank
    cells = tuple(
        CellMark(
            row,
            column,
            rows[row],
            columns[column],
            answers.written[row][column],
            float(step.values[row, column]),
            "right"
            if right[row, column]
            else "carried"
            if carried[row, column]
            else "blank"
            if blank[row, column]
            else "wrong",
        )
        for row in range(len(rows))
        for column in range(len(columns))
    )
    short = too_few_digits(answers, step.values, ~right & ~carried, exercise.digits)
    notes = answers.notes if short is None else (*answers.notes, short)
    heading = step_heading(step, exercise.trace)
    return StepMarks(step.name, step.head, heading, step.formula, exercise.possible_points(key), cells, causes, notes)


def _causes(
    exercise: Exercise, answers: Mapping[StepKey, Answers], compared: FollowThrough
) -> dict[StepKey, tuple[Cause, ...]]:
    """Return the usual mistakes that explain wrong answers, from `check()` of the answers as claims."""
    wrong = {
        key: ~(matrix.values.isnan() | compared.right[key] | compared.carried[key]) for key, matrix in answers.items()
    }
    if not any(cells.any() for cells in wrong.values()):
        return {}
    claims = [
        Claim(
            position,
            name,
            head,
            exercise.tolerance,
            _as_printed(exercise, values),
            query_heads=heads_that_use(name, head, exercise.trace.group),
        )
        for position, ((name, head), values) in enumerate(compared.written.items(), 1)
    ]
    audit = check(replace(exercise.example, claims=tuple(claims)))
    return {
        (result.step, result.head): tuple(
            cause for cause in result.causes if any(wrong[result.step, result.head][cell] for cell in cause.cells)
        )
        for result in audit.findings
        if (result.step, result.head) in wrong
    }


def _as_printed(exercise: Exercise, values: Tensor) -> PrintedMatrix:
    half_unit = torch.full_like(values, 0.5 * 10.0**-exercise.digits)
    printed = tuple(tuple(_printed(cell, exercise.digits) for cell in row) for row in values.tolist())
    return PrintedMatrix(values, half_unit, printed)


def _printed(cell: float, digits: int) -> str:
    return BLANK if math.isnan(cell) else str(Decimal(f"{cell:.{digits}f}"))
