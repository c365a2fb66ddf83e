"""Sources of the numbers of a worked example: printed in the text, given, drawn at random, or computed."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import torch

from clearhead._utils.text import count_noun, visible_text
from clearhead.explain._error_propagation import agree
from clearhead.explain.example import Example
from clearhead.explain.render.wording import is_identity
from clearhead.explain.steps import Operand, Step, Trace

PRINTED = "printed in the text"
_LETTERS = {"Q": "query", "K": "key", "V": "value", "O": "output"}
_STEP_ORIGINS = {
    "input": PRINTED,
    "given": "given by the text, not computed",
    "partly given": "partly given by the text, otherwise computed",
}


def with_origins(trace: Trace, example: Example) -> Trace:
    """Return the trace of an example with the origin of every matrix, and notes where the text prints other numbers."""
    steps = tuple(
        replace(
            step,
            origin=_STEP_ORIGINS.get(step.origin, "computed"),
            note=_note(step, example),
            operands=tuple(replace(operand, origin=_operand_origin(operand, example)) for operand in step.operands),
        )
        for step in trace.steps
    )
    return replace(trace, steps=steps, all_steps=steps)


def _operand_origin(operand: Operand, example: Example) -> str:
    if operand.origin or not operand.new:  # a step or columns of one
        return _STEP_ORIGINS.get(operand.origin, "computed")
    if operand.symbol == "M":
        return "mask of the example"
    name = _LETTERS.get(operand.symbol[2:3], "") if operand.symbol.startswith("W_") else ""
    if not name:
        return PRINTED  # the embedding table, or a bias
    if name == "output" and is_identity(operand):
        return "identity: leaves C unchanged"
    return f"drawn at random (seed {example.seed})" if name in example.as_drawn else PRINTED


def _note(step: Step, example: Example) -> str:
    """Return a sentence if the text prints other numbers for a step, or an empty string."""
    if step.how in ("input", "given"):
        return ""
    claims = [claim for claim in example.claims if (claim.step, claim.head) == (step.name, step.head)]
    for claim in claims:
        if claim.values is None or claim.values.blank.all():
            continue
        command = (
            f"`clearhead check {visible_text(shlex.quote(Path(example.name).name))}`"
            if example.name
            else "`clearhead check`"
        )
        if claim.values.shape != step.shape:
            return f"The text prints a matrix of another shape here; see {command}."
        tolerance = claim.values.tolerance if claim.tolerance is None else torch.tensor(claim.tolerance)
        written = ~claim.values.blank
        others = int((written & ~agree(claim.values.values, step.values, tolerance)).sum())
        if others:
            cells = f"{others} of {count_noun(int(written.sum()), 'cell')}"
            return f"The text prints other numbers in {cells}; see {command}."
    return ""
