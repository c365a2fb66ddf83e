"""How a calculation is put into words and numbers, the same in every format."""

from __future__ import annotations

import math

from torch import Tensor

from clearhead._utils.color_scales import signed_shades
from clearhead._utils.text import visible_text
from clearhead.explain.steps import Step, Trace

DIGITS = 3  # after the point, unless asked for others
TOO_LONG = 1e7  # to be written out in full
LONGEST = 16  # letters of a token over a column

TITLES = {
    "input": "Input",
    "slice": "Slice",
    "query": "Queries",
    "key": "Keys",
    "value": "Values",
    "scores": "Scores",
    "scaled": "Scaled scores",
    "masked": "Masked scores",
    "weights": "Attention weights",
    "head_output": "Output of the head",
    "concat": "All heads side by side",
    "output": "Output",
}
SENTENCES = {
    "input": "One row for each token.",
    "slice": "This head sees only its own columns of the input.",
    "query": "What each token looks for.",
    "key": "What each token can be found by.",
    "value": "What each token has to give.",
    "scores": "Every query against every key: the larger the product, the better they match.",
    "scaled": "Products of longer vectors are larger; the scaling takes that out again.",
    "masked": "Where a query may not look, the score becomes −∞, and its weight 0.",
    "weights": "Each row becomes numbers from 0 to 1 that sum to 1: how a query divides its attention among the keys.",
    "head_output": "Each token's mixture of values, by its attention weights.",
    "concat": "The outputs of all heads, joined column by column.",
    "output": "The last matrix mixes what the heads have found.",
}


def sentence(step: Step) -> str:
    """One sentence on what a step is for."""
    if step.how == "given":
        return "This matrix is given, not computed."
    if step.how == "partly":
        return "Some of these numbers are given, the others computed."
    if step.name == "weights" and len(step.operands) > 1:
        return "Each row becomes numbers from 0 to 1 that sum to 1 together with the sink's share."
    return SENTENCES[step.name]


def heading(step: Step, trace: Trace) -> str:
    """A step's title, with its head where there are several."""
    if trace.heads == 1 or step.head is None:
        return TITLES[step.name]
    return f"{TITLES[step.name]}, head {step.head + 1}"


def cost(step: Step) -> str:
    """What a step costs, or nothing where it costs nothing."""
    parts = ((step.multiply_adds, "multiply-add"), (step.weights, "weight"))
    return ", ".join(counted(number, what) for number, what in parts if number)


def counted(number: int, what: str) -> str:
    """1 cell, 2 cells."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def short(token: str) -> str:
    """A token that fits over a column."""
    shown = visible_text(token)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 1]}…"


def typeset(values: Tensor, digits: int = DIGITS) -> list[list[str]]:
    """A matrix's numbers with as many digits after the point as they need, at most `digits`."""
    rows = values.tolist()
    finite = [cell for row in rows for cell in row if math.isfinite(cell)]
    most = max((abs(cell) for cell in finite), default=0.0)
    if most >= TOO_LONG or 0 < most < 0.5 * 10**-digits:
        return [[number(cell, digits, "e") for cell in row] for row in rows]
    for needed in range(digits):
        if all(abs(round(cell, needed) - cell) <= 1e-12 * max(1.0, most) for cell in finite):
            digits = needed
            break
    return [[number(cell, digits) for cell in row] for row in rows]


def warmth(values: Tensor) -> list[list[float]]:
    """`signed_shades` of a matrix of any dtype, on any device."""
    return signed_shades(values.double().cpu().numpy()).tolist()


def number(value: float, digits: int, style: str = "f") -> str:
    """One number; without the minus of a negative zero."""
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    text = f"{value:.{digits}{'e' if abs(value) >= TOO_LONG else style}}"
    return text.lstrip("-") if float(text) == 0 else text
