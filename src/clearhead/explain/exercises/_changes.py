"""Comparison of the given numbers of a student's file with those of the teacher's exercise."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from clearhead._utils.text import count_noun
from clearhead.explain._printed_matrix import short_repr
from clearhead.explain.exercises.answer_file import AnswerFile
from clearhead.explain.exercises.exercise import Exercise

# names of the indices of a list, by its depth
_AXES = {1: ("item",), 2: ("row", "column"), 3: ("head", "row", "column")}


def changed_exercise(student: AnswerFile, teacher: AnswerFile) -> str | None:
    """Return why answers do not belong to an exercise, or None if its givens are unchanged."""
    changed = _difference(student.givens, teacher.givens)
    if changed is None:
        return None
    answered, given = student.exercise, teacher.exercise
    if (answered.title, answered.seed) != (given.title, given.seed):
        return f"these are answers to {_name(answered)}, but the exercise is {_name(given)}"
    return f"{changed}; the given numbers must not be changed"


def _name(exercise: Exercise) -> str:
    return f"{short_repr(exercise.title)} (seed {exercise.seed})"


def _difference(student: object, teacher: object, name: str = "", axes: tuple[str, ...] | None = None) -> str | None:
    """Return a description of the first difference between two parsed files, or None."""
    if isinstance(student, Mapping) and isinstance(teacher, Mapping):
        prefix = f"{name}." if name else ""
        for key in dict.fromkeys([*teacher, *student]):
            if key not in student or key not in teacher:
                return f"{prefix}{key} is {'missing' if key in teacher else 'not in the exercise'}"
            if changed := _difference(student[key], teacher[key], f"{prefix}{key}"):
                return changed
        return None
    if isinstance(student, list) and isinstance(teacher, list):
        axis, *inner = _AXES.get(_depth(teacher), ("item",)) if axes is None else axes or ("item",)
        if len(student) != len(teacher):
            return f"{name} has {count_noun(len(student), axis)}; expected {len(teacher)}, as in the exercise"
        for index, pair in enumerate(zip(student, teacher, strict=True), 1):
            if changed := _difference(*pair, f"{name}, {axis} {index}", tuple(inner)):
                return changed
        return None
    if student == teacher and isinstance(student, bool) == isinstance(teacher, bool):
        return None
    return f"{name} is {_value(student)}; expected {_value(teacher)}, as in the exercise"


def _depth(value: object) -> int:
    return 1 + _depth(value[0]) if isinstance(value, list) and value else 0


def _value(value: object) -> str:
    if isinstance(value, list):
        return "a list"
    return str(value) if isinstance(value, Decimal) else short_repr(value)
