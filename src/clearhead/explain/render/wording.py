"""Words and number formats of a written-out calculation, shared by all formats."""

from __future__ import annotations

import math

from torch import Tensor

from clearhead._utils.color_scales import signed_shades
from clearhead._utils.text import count_noun, visible_text
from clearhead.explain.steps import Step, Trace

DEFAULT_DIGITS = 3  # after the point
SCIENTIFIC_FROM = 1e7  # larger numbers are written with an exponent
MAX_LABEL_LETTERS = 16  # of a token over a column

STEP_TITLES = {
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
STEP_SENTENCES = {
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


def step_sentence(step: Step) -> str:
    """Return one sentence on the purpose of a step."""
    if step.how == "given":
        return "This matrix is given, not computed."
    if step.how == "partly":
        return "Some of these numbers are given, the others computed."
    if step.name == "weights" and len(step.operands) > 1:
        return "Each row becomes numbers from 0 to 1 that sum to 1 together with the sink's share."
    return STEP_SENTENCES[step.name]


def step_heading(step: Step, trace: Trace) -> str:
    """Return a step's title, with its head if there are several."""
    if trace.heads == 1 or step.head is None:
        return STEP_TITLES[step.name]
    return f"{STEP_TITLES[step.name]}, head {step.head + 1}"


def step_cost(step: Step) -> str:
    """Return the cost of a step in words, empty if it costs nothing."""
    parts = ((step.multiply_adds, "multiply-add"), (step.weights, "weight"))
    return ", ".join(count_noun(count, noun) for count, noun in parts if count)


def short_label(token: str) -> str:
    """Return a token that fits over a column."""
    label = visible_text(token)
    return label if len(label) <= MAX_LABEL_LETTERS else f"{label[: MAX_LABEL_LETTERS - 1]}…"


def format_matrix(values: Tensor, digits: int = DEFAULT_DIGITS) -> list[list[str]]:
    """Format a matrix's numbers with as many digits after the point as they need, at most `digits`."""
    rows = values.tolist()
    finite = [cell for row in rows for cell in row if math.isfinite(cell)]
    largest = max((abs(cell) for cell in finite), default=0.0)
    if largest >= SCIENTIFIC_FROM or 0 < largest < 0.5 * 10**-digits:
        return [[format_number(cell, digits, "e") for cell in row] for row in rows]
    for needed in range(digits):
        if all(abs(round(cell, needed) - cell) <= 1e-12 * max(1.0, largest) for cell in finite):
            digits = needed
            break
    return [[format_number(cell, digits) for cell in row] for row in rows]


def cell_shades(values: Tensor) -> list[list[float]]:
    """Return `signed_shades` of a matrix of any dtype, on any device."""
    return signed_shades(values.double().cpu().numpy()).tolist()


def format_number(value: float, digits: int, style: str = "f") -> str:
    """Format one number, without the minus of a negative zero."""
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    text = f"{value:.{digits}{'e' if abs(value) >= SCIENTIFIC_FROM else style}}"
    return text.lstrip("-") if float(text) == 0 else text
