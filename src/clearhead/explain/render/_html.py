"""A worked example as one HTML page: no network, every matrix a table, every cell able to show what made it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from clearhead._utils.extras import needs_extra
from clearhead._utils.text import visible_text
from clearhead.explain.render.wording import DIGITS, cost, heading, sentence, typeset, warmth
from clearhead.explain.steps import Operand, Step, Trace

with needs_extra("explain", "the HTML format"):
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from latex2mathml.converter import convert
    from markupsafe import Markup

# what stands between a step's operands, and before its result
_SIGNS = {
    "product": ("×", "="),
    "other": ("×", "→"),
    "partly": ("", "→"),
    "slice": ("", "→"),
    "scaled": ("", "→"),
    "masked": ("+", "="),
    "softmax": (";", "→"),
    "concat": ("|", "="),
}
_PAGES = Environment(loader=PackageLoader("clearhead.explain.render"), autoescape=True, undefined=StrictUndefined)


@dataclass(frozen=True)
class _Cell:
    text: str
    style: str


@dataclass(frozen=True)
class _Table:
    symbol: str
    formula: Markup
    shape: str
    sign: str  # what stands before it
    marks: str
    shift: int
    columns: tuple[str, ...]
    rows: list[tuple[str, list[_Cell]]]


@dataclass(frozen=True)
class _Section:
    id: str
    number: int
    heading: str
    formula: Markup
    text: str  # the formula in plain letters
    sentence: str
    shapes: str
    cost: str
    how: str
    scaling: str
    tables: list[_Table]


def as_html(trace: Trace, title: str, digits: int = DIGITS) -> str:
    """One self-contained page: steps by keyboard, light and dark, and it prints."""
    page = _PAGES.get_template("page.html")
    return page.render(
        title=visible_text(title),
        tokens=[visible_text(token) for token in trace.tokens],
        heads=trace.heads,
        sections=[_section(number, step, trace, digits) for number, step in enumerate(trace, 1)],
    )


def _section(number: int, step: Step, trace: Trace, digits: int) -> _Section:
    return _Section(
        id=_id(step, trace),
        number=number,
        heading=heading(step, trace),
        formula=Markup(convert(step.latex, display="block")),
        text=step.formula,
        sentence=sentence(step),
        shapes=step.shapes,
        cost=cost(step),
        how=step.how,
        scaling=step.scaling,
        tables=list(_tables(step, trace, digits)),
    )


def _id(step: Step, trace: Trace) -> str:
    """In the address: weights-2 is head 2's. The second input is the memory."""
    if step.head is not None:
        return f"{step.name}-{step.head + 1}"
    return step.name if step is trace.named(step.name)[0] else f"{step.name}-2"


def _tables(step: Step, trace: Trace, digits: int) -> Iterator[_Table]:
    between, before_result = _SIGNS.get(step.how, ("", ""))
    for place, operand in enumerate(step.operands):
        sign = "" if place == 0 else "+" if place == 2 and step.name != "concat" else between
        yield _table(operand, operand.latex, trace, digits, sign, operand.marks, operand.shift)
    yield _table(step, step.latex_symbol, trace, digits, before_result if step.operands else "", "result")


def _table(
    matrix: Step | Operand, latex: str, trace: Trace, digits: int, sign: str, marks: str, shift: int = 0
) -> _Table:
    count, width = matrix.values.shape
    cells = [
        [_cell(text, level) for text, level in zip(*row, strict=True)]
        for row in zip(typeset(matrix.values, digits), warmth(matrix.values), strict=True)
    ]
    labels = [visible_text(label) for label in trace.labels(matrix.rows, count)]
    columns = tuple(visible_text(label) for label in trace.labels(matrix.columns, width))
    rows = list(zip(labels, cells, strict=True))
    return _Table(matrix.symbol, Markup(convert(latex)), f"({count}, {width})", sign, marks, shift, columns, rows)


def _cell(text: str, level: float) -> _Cell:
    """Its warmth is a number that the style sheet makes a colour of, by the theme."""
    style = "" if math.isnan(level) else f"--{'warm' if level >= 0 else 'cool'}:{abs(level):.0%}"
    return _Cell(text.replace("-", "−"), style)
