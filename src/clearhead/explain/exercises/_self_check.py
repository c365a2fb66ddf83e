"""The calculation of an exercise as data for the page, which recomputes it. It contains given numbers only."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from clearhead.explain._recompute import Recomputation
from clearhead.explain.exercises._follow_through import printed_values
from clearhead.explain.exercises.exercise import Exercise
from clearhead.explain.steps import Operand, Step, StepKey

_SUPPORTED = ("slice", "product", "scaled", "masked", "softmax", "concat")


def calculation(exercise: Exercise) -> list[dict[str, Any]]:
    """Return each step with its operation and operands: the index of an earlier step, or a given matrix.

    Raises:
        ValueError: the page does not support an operation of the exercise, such as a rotary embedding.
    """
    indices = {step.symbol: index for index, step in enumerate(exercise.steps.values())}
    return [_step(exercise, key, step, indices) for key, step in exercise.steps.items()]


def _step(exercise: Exercise, key: StepKey, step: Step, indices: dict[str, int]) -> dict[str, Any]:
    if step.how not in _SUPPORTED or (step.how in ("softmax", "scaled") and len(step.operands) != 1):
        raise ValueError(f"self_check does not support {step.formula}; mark the answers with `clearhead mark`")
    blank = key in exercise.blanks
    return {
        "id": step.name if step.head is None else f"{step.name}-{step.head + 1}",
        "how": step.how,
        "shape": list(step.shape),
        "operands": [_operand(operand, indices) for operand in step.operands],
        "blank": blank,
        "points": exercise.possible_points(key) if blank else 0,
        "printed": _json_rows(printed_values(exercise, key)) if key in exercise.shown else None,
        "factor": _scale(exercise, step) if step.how == "scaled" else 1,
        "first_column": step.operands[0].shift,  # of a slice
    }


def _operand(operand: Operand, indices: dict[str, int]) -> dict[str, Any]:
    if not operand.new and operand.symbol in indices:
        return {"step": indices[operand.symbol], "transposed": False}
    if not operand.new and operand.symbol.removesuffix("ᵀ") in indices:
        return {"step": indices[operand.symbol.removesuffix("ᵀ")], "transposed": True}
    return {"values": _json_rows(operand.values)}


def _scale(exercise: Exercise, step: Step) -> float:
    """Return the factor that turns scores into scaled scores."""
    ones = torch.ones_like(step.values)
    return float(Recomputation(exercise.example, {("scores", step.head): ones}).matrix("scaled", step.head or 0)[0, 0])


def _json_rows(values: Tensor) -> list[list[float | None]]:
    """Return rows with None for −∞, which JSON does not support."""
    return [[cell if math.isfinite(cell) else None for cell in row] for row in values.tolist()]
