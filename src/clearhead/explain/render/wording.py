"""Words and number formats that all output formats of a calculation share."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from clearhead._utils.color_scales import signed_shades
from clearhead._utils.text import count_noun, visible_text
from clearhead.explain.steps import KEY_HEAD_STEPS, Operand, Step, Trace

DEFAULT_DIGITS = 3  # after the decimal point
SCIENTIFIC_FROM = 1e7  # numbers from here on are written with an exponent
MINUS = "−"
MAX_LABEL_LETTERS = 16  # in a column header

STEP_TITLES = {
    "embedding": "Embedding",
    "positions": "Positions",
    "input": "Input",
    "memory": "Memory",
    "mask": "Mask",
    "slice": "Slice",
    "query": "Queries",
    "key": "Keys",
    "value": "Values",
    "scores": "Scores",
    "scaled": "Scaled scores",
    "biased": "Scores with bias",
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
    "mask": "A row for each query and a column for each key: 0 where the query may attend, −∞ where not.",
    "slice": "This head reads only its own columns of the input. Real models do not slice: each head projects the whole"
    " input.",
    "query": "A query describes what a token looks for in other tokens.",
    "key": "A key describes what a token has, and is compared with the queries.",
    "value": "A value is what a token passes on to the tokens that attend to it.",
    "scores": "A score is the dot product of a query and a key: the larger it is, the better they match.",
    "scaled": "More columns make larger dot products. The scaling compensates for that.",
    "biased": "The model adds a number for each query and key, which depends on their positions.",
    "masked": "The mask sets a score to −∞ where a query may not attend, so that the weight is 0.",
    "weights": "Softmax turns each row into numbers from 0 to 1 that sum to 1: the attention of a query to each key.",
    "head_output": "Each row is the mean of the values, weighted by the attention weights of a query.",
    "concat": "The outputs of all heads are joined column by column.",
    "output": "The output matrix mixes the outputs of the heads.",
}


def step_sentence(step: Step, trace: Trace) -> str:
    """Return one or more sentences that explain a step."""
    return " ".join(part for part in (_sentence(step, trace), _remark(step), step.note) if part)


def _sentence(step: Step, trace: Trace) -> str:
    if step.how == "given":
        return "This matrix is given, not computed."
    if step.how == "partly":
        return "Some of these numbers are given, the others are computed."
    if step.name == "weights" and len(step.operands) > 1:
        return "Softmax turns each row into numbers from 0 to 1. They sum to 1 together with the weight of the sink."
    if step.how == "lookup":
        return "Each token is looked up in the embedding table, which has one row for each token of the vocabulary."
    if step.name == "concat" and trace.heads == 1:
        return "With one head there is nothing to join: C = O."
    return STEP_SENTENCES.get(step.name, "")


def _remark(step: Step) -> str:
    """Return a sentence about a special case, or an empty string."""
    if step.name == "weights" and step.how == "softmax":
        empty = int((step.operands[0].values == -math.inf).all(dim=1).sum())
        if empty:
            return f"{count_noun(empty, 'row')} may attend to no key: all weights are 0, and do not sum to 1."
    if step.name == "output" and any(operand.symbol == "W_O" and is_identity(operand) for operand in step.operands):
        return "W_O is the identity here, which leaves C unchanged."
    return ""


def is_identity(operand: Operand) -> bool:
    """Return whether a matrix is the identity."""
    rows, columns = operand.values.shape
    return rows == columns and operand.values.equal(torch.eye(rows).to(operand.values))


def step_heading(step: Step, trace: Trace) -> str:
    """Return a step's title, with its head if there are several."""
    title = STEP_TITLES.get(step.name, step.name.replace("_", " ").capitalize())
    if trace.heads == 1 or step.head is None:
        return title
    if trace.group > 1 and step.name in KEY_HEAD_STEPS:
        first, last = step.head * trace.group + 1, (step.head + 1) * trace.group
        return f"{title}, shared by heads {first} {'and' if trace.group == 2 else 'to'} {last}"
    return f"{title}, head {step.head + 1}"


def origin_text(matrix: Step | Operand) -> str:
    """Return the source of a matrix's numbers."""
    if matrix.origin:
        return matrix.origin
    if isinstance(matrix, Step) or not matrix.new:
        return "computed"
    learned = matrix.symbol.startswith(("W_", "b_")) or matrix.symbol == "sink"
    return "from the layer's parameters" if learned else "mask" if matrix.symbol == "M" else "input"


def step_cost(step: Step) -> str:
    """Return the cost of a step in words, or an empty string."""
    parts = ((step.multiply_adds, "multiply-add"), (step.weights, "weight"))
    return ", ".join(count_noun(count, noun) for count, noun in parts if count)


def short_label(token: str) -> str:
    """Return a token, shortened to fit a column header."""
    label = visible_text(token)
    return label if len(label) <= MAX_LABEL_LETTERS else f"{label[: MAX_LABEL_LETTERS - 1]}…"


class NumberFormat:
    """Format of the numbers of one matrix: as few digits after the point as possible, at most `digits`."""

    def __init__(self, values: Tensor, digits: int = DEFAULT_DIGITS) -> None:
        values = values.detach().double()
        finite = values[values.isfinite()]
        largest = float(finite.abs().max()) if finite.numel() else 0.0
        self.style, self.digits = "f", digits
        if largest >= SCIENTIFIC_FROM or 0 < largest < 0.5 * 10**-digits:
            self.style = "e"
            return
        for needed in range(digits):
            # a part of a large matrix usually shows that more digits are needed
            if all(_is_rounded(part, needed, largest) for part in (finite[:1000], finite)):
                self.digits = needed
                return

    def plain(self, value: float) -> str:
        """Return a number with a hyphen as its minus sign, as in tables of text."""
        return format_number(value, self.digits, self.style)

    def signed(self, value: float) -> str:
        """Return a number with a typographic minus sign."""
        return self.plain(value).replace("-", MINUS, 1) if value < 0 else self.plain(value)

    def bracketed(self, value: float) -> str:
        """Return a number as a factor or summand: a negative one is in brackets."""
        text = self.signed(value)
        return f"({text})" if text.startswith(MINUS) else text

    def is_exact(self, value: float) -> bool:
        """Return whether a number is shown without rounding."""
        return math.isinf(value) or abs(float(self.plain(value)) - value) <= 1e-12 * max(1.0, abs(value))


def _is_rounded(values: Tensor, digits: int, largest: float) -> bool:
    return bool(((values.round(decimals=digits) - values).abs() <= 1e-12 * max(1.0, largest)).all())


def format_matrix(values: Tensor, digits: int = DEFAULT_DIGITS) -> list[list[str]]:
    """Format the numbers of a matrix with as few digits after the point as possible, at most `digits`."""
    form = NumberFormat(values, digits)
    return [[form.plain(cell) for cell in row] for row in values.tolist()]


def cell_shades(values: Tensor) -> list[list[float]]:
    """Return the `signed_shades` of a tensor of any dtype and device."""
    return signed_shades(values.double().cpu().numpy()).tolist()


def format_number(value: float, digits: int, style: str = "f") -> str:
    """Format one number. Negative zero has no minus sign."""
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    text = f"{value:.{digits}{'e' if abs(value) >= SCIENTIFIC_FROM else style}}"
    return text.lstrip("-") if float(text) == 0 else text
