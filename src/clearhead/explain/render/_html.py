"""Worked examples as self-contained HTML pages that show the calculation of each cell."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from clearhead._utils.extras import needs_extra
from clearhead._utils.text import visible_text
from clearhead.explain.render.wording import (
    DEFAULT_DIGITS,
    cell_shades,
    format_matrix,
    step_cost,
    step_heading,
    step_sentence,
)
from clearhead.explain.steps import Operand, Step, Trace

with needs_extra("explain", "the HTML format"):
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from latex2mathml.converter import convert
    from markupsafe import Markup

# operator between a step's operands, and before its result
_OPERATORS = {
    "product": ("×", "="),
    "other": ("×", "→"),
    "partly": ("", "→"),
    "slice": ("", "→"),
    "scaled": ("", "→"),
    "masked": ("+", "="),
    "softmax": (";", "→"),
    "concat": ("|", "="),
}
TEMPLATES = Environment(loader=PackageLoader("clearhead.explain.render"), autoescape=True, undefined=StrictUndefined)


@dataclass(frozen=True)
class _TableCell:
    text: str
    style: str


@dataclass(frozen=True)
class _Table:
    symbol: str
    formula: Markup
    shape: str
    sign: str  # operator before the table
    marks: str
    shift: int
    columns: tuple[str, ...]
    rows: list[tuple[str, list[_TableCell]]]


@dataclass(frozen=True)
class _Section:
    id: str
    position: int  # counted from 1
    heading: str
    formula: Markup
    text: str  # the formula as plain text
    sentence: str
    shapes: str
    cost: str
    how: str
    scaling: str
    tables: list[_Table]


def as_html(trace: Trace, title: str, digits: int = DEFAULT_DIGITS) -> str:
    """Return one self-contained HTML page with keyboard navigation, two themes and a print style."""
    page = TEMPLATES.get_template("page.html")
    return page.render(
        title=visible_text(title),
        tokens=[visible_text(token) for token in trace.tokens],
        heads=trace.heads,
        sections=[_section(position, step, trace, digits) for position, step in enumerate(trace, 1)],
    )


def _section(position: int, step: Step, trace: Trace, digits: int) -> _Section:
    return _Section(
        id=_anchor(step, trace),
        position=position,
        heading=step_heading(step, trace),
        formula=Markup(convert(step.latex, display="block")),
        text=step.formula,
        sentence=step_sentence(step),
        shapes=step.shapes,
        cost=step_cost(step),
        how=step.how,
        scaling=step.scaling,
        tables=list(_tables(step, trace, digits)),
    )


def _anchor(step: Step, trace: Trace) -> str:
    """Return the id of a step's section, used in URLs: weights-2 for head 2, input-2 for the memory."""
    if step.head is not None:
        return f"{step.name}-{step.head + 1}"
    return step.name if step is trace.named(step.name)[0] else f"{step.name}-2"


def _tables(step: Step, trace: Trace, digits: int) -> Iterator[_Table]:
    between, before_result = _OPERATORS.get(step.how, ("", ""))
    for index, operand in enumerate(step.operands):
        sign = "" if index == 0 else "+" if index == 2 and step.name != "concat" else between
        yield _table(operand, operand.latex, trace, digits, sign, operand.marks, operand.shift)
    yield _table(step, step.latex_symbol, trace, digits, before_result if step.operands else "", "result")


def _table(
    matrix: Step | Operand, latex: str, trace: Trace, digits: int, sign: str, marks: str, shift: int = 0
) -> _Table:
    count, width = matrix.values.shape
    cells = [
        [_table_cell(text, shade) for text, shade in zip(*row, strict=True)]
        for row in zip(format_matrix(matrix.values, digits), cell_shades(matrix.values), strict=True)
    ]
    labels = [visible_text(label) for label in trace.labels(matrix.rows, count)]
    columns = tuple(visible_text(label) for label in trace.labels(matrix.columns, width))
    rows = list(zip(labels, cells, strict=True))
    return _Table(matrix.symbol, Markup(convert(latex)), f"({count}, {width})", sign, marks, shift, columns, rows)


def _table_cell(text: str, shade: float) -> _TableCell:
    """Return a cell with its shade as a CSS variable, which the style sheet mixes with a color of the theme."""
    style = "" if math.isnan(shade) else f"--{'warm' if shade >= 0 else 'cool'}:{abs(shade):.0%}"
    return _TableCell(text.replace("-", "−"), style)
