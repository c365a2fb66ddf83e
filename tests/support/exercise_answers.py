"""Answers of imaginary students, computed as students do: rounded or not, and with errors that they carry on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from clearhead.explain._recompute import Recomputation
from clearhead.explain.exercises import Exercise, Marks, mark, to_toml
from clearhead.explain.exercises._follow_through import printed_values
from clearhead.explain.steps import StepKey

Errors = Mapping[StepKey, Mapping[tuple[int, int], float]]  # what a student adds to cells by mistake


def answers_of(
    exercise: Exercise,
    errors: Errors | None = None,
    *,
    rounded: bool | Mapping[StepKey, bool] = True,
    ignore_shown: bool = False,
) -> dict[StepKey, list[list[str]]]:
    """Return the answers of a student, who continues with rounded or with unrounded numbers, of all or some steps."""
    used: dict[StepKey, Tensor] = {}
    answers = {}
    for key in exercise.steps:
        values = Recomputation(exercise.example, used).matrix(key[0], key[1] or 0).clone()
        for cell, error in (errors or {}).get(key, {}).items():
            values[cell] += error
        printed = values.round(decimals=exercise.digits)
        is_rounded = rounded if isinstance(rounded, bool) else rounded[key]
        if key in exercise.shown and not ignore_shown:
            used[key] = printed_values(exercise, key) if is_rounded else values
        else:
            used[key] = printed if is_rounded else values
        if key in exercise.blanks:
            answers[key] = [[_text(cell, exercise.digits) for cell in row] for row in printed.tolist()]
    return answers


def answers_with_swapped_heads(exercise: Exercise) -> dict[StepKey, list[list[str]]]:
    """Return right answers, except for an output computed from the heads in the opposite order."""
    heads = [exercise.steps["head_output", head].values for head in reversed(range(exercise.example.heads))]
    output = torch.cat(heads, dim=-1) @ exercise.example.weights["output"]
    rows = [[_text(cell, exercise.digits) for cell in row] for row in output.tolist()]
    return {**answers_of(exercise), ("output", None): rows}


def marked(exercise: Exercise, answers: Mapping[StepKey, list[list[str]]], folder: Path) -> Marks:
    """Write an answer file and mark it."""
    path = folder / "answers.toml"
    path.write_text(to_toml(exercise, student="Ada", answers=answers), encoding="utf-8")
    return mark(path)


def verdicts(marks: Marks) -> dict[str, int]:
    """Return the number of answers with each verdict."""
    return {
        verdict: sum(step.count(verdict) for step in marks.steps) for verdict in ("right", "carried", "wrong", "blank")
    }


def _text(cell: float, digits: int) -> str:
    return "-inf" if cell == -float("inf") else f"{cell:.{digits}f}"
