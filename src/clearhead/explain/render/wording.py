"""Words and number formats that all output formats of a calculation share."""

from __future__ import annotations

import math

from torch import Tensor

from clearhead._utils.color_scales import signed_shades
from clearhead._utils.text import count_noun, visible_text
from clearhead.explain.steps import KEY_HEAD_STEPS, Step, Trace

DEFAULT_DIGITS = 3  # after the decimal point
SCIENTIFIC_FROM = 1e7  # numbers from here on are written with an exponent
MAX_LABEL_LETTERS = 16  # in a column header

STEP_TITLES = {
    "embedding": "Embedding",
    "positions": "Positions",
    "input": "Input",
    "memory": "Memory",
    "slice": "Slice",
    "query": "Queries",
    "key": "Keys",
    "value": "Values",
    "scores": "Scores",
    "scaled": "Scaled scores",
    "masked": "Masked scores",
    "weights": "Attention weights",
    "head_output": "Head output",
    "concat": "Concatenated heads",
    "output": "Output",
}
STEP_SENTENCES = {
    "embedding": "One row for each token, before its position is added.",
    "positions": "One row for each position, counted from 0. It makes equal tokens at different positions differ.",
    "input": "One row for each token.",
    "memory": "One row for each token of the other text. The keys and the values are computed from it.",
    "slice": "This head reads only its own columns of the input.",
    "query": "A query describes what a token looks for in other tokens.",
    "key": "A key describes what a token has, and is compared with the queries.",
    "value": "A value is what a token passes on to the tokens that attend to it.",
    "scores": "A score is the dot product of a query and a key: the larger it is, the better they match.",
    "scaled": "Longer vectors have larger dot products. The scaling compensates for that.",
    "masked": "The mask sets a score to −∞ where a query may not attend, so that the weight is 0.",
    "weights": "Softmax turns each row into numbers from 0 to 1 that sum to 1: the attention of a query to each key.",
    "head_output": "Each row is the mean of the values, weighted by the attention weights of a query.",
    "concat": "The outputs of all heads are joined column by column.",
    "output": "The output matrix mixes the outputs of the heads.",
}


def step_sentence(step: Step) -> str:
    """Return one or two sentences that explain a step."""
    if step.how == "given":
        return "This matrix is given, not computed."
    if step.how == "partly":
        return "Some of these numbers are given, the others are computed."
    if step.name == "weights" and len(step.operands) > 1:
        return "Softmax turns each row into numbers from 0 to 1. They sum to 1 together with the weight of the sink."
    if step.how == "lookup":
        return "Each token is looked up in the embedding table, which has one row for each token of the vocabulary."
    return STEP_SENTENCES[step.name]


def step_heading(step: Step, trace: Trace) -> str:
    """Return a step's title, with its head if there are several."""
    if trace.heads == 1 or step.head is None:
        return STEP_TITLES[step.name]
    if trace.group > 1 and step.name in KEY_HEAD_STEPS:
        first, last = step.head * trace.group + 1, (step.head + 1) * trace.group
        return f"{STEP_TITLES[step.name]}, shared by heads {first} {'and' if trace.group == 2 else 'to'} {last}"
    return f"{STEP_TITLES[step.name]}, head {step.head + 1}"


def step_cost(step: Step) -> str:
    """Return the cost of a step in words, or an empty string."""
    parts = ((step.multiply_adds, "multiply-add"), (step.weights, "weight"))
    return ", ".join(count_noun(count, noun) for count, noun in parts if count)


def short_label(token: str) -> str:
    """Return a token, shortened to fit a column header."""
    label = visible_text(token)
    return label if len(label) <= MAX_LABEL_LETTERS else f"{label[: MAX_LABEL_LETTERS - 1]}…"


def format_matrix(values: Tensor, digits: int = DEFAULT_DIGITS) -> list[list[str]]:
    """Format the numbers of a matrix with as few digits after the point as possible, at most `digits`."""
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
    """Return the `signed_shades` of a tensor of any dtype and device."""
    return signed_shades(values.double().cpu().numpy()).tolist()


def format_number(value: float, digits: int, style: str = "f") -> str:
    """Format one number. Negative zero has no minus sign."""
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    text = f"{value:.{digits}{'e' if abs(value) >= SCIENTIFIC_FROM else style}}"
    return text.lstrip("-") if float(text) == 0 else text
