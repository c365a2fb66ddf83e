"""Worked examples as self-contained HTML pages that show the calculation of each cell."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from clearhead._utils.extras import needs_extra
from clearhead._utils.fonts import embed_font
from clearhead._utils.text import visible_text
from clearhead.explain.live.page import live_config, live_modules
from clearhead.explain.render._arithmetic import arithmetic_lines
from clearhead.explain.render._formula import cost_sentences, whole_formula
from clearhead.explain.render._layout import Entries, Layout, View
from clearhead.explain.render.wording import DEFAULT_DIGITS, step_cost, step_heading, step_sentence
from clearhead.explain.steps import Step, Trace

with needs_extra("explain", "the HTML format"):
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
    from latex2mathml.converter import convert
    from markupsafe import Markup

MAX_LIVE_PAGE = 400_000  # bytes
# operator between a step's operands, and before its result
_OPERATORS = {
    "product": ("×", "="),
    "other": ("×", "→"),
    "partly": ("", "→"),
    "slice": ("", "→"),
    "scaled": ("", "→"),
    "masked": ("+", "="),
    "sum": ("+", "="),
    "lookup": ("", "→"),
    "softmax": (";", "→"),
    "concat": ("|", "="),
}
LOADERS = [PackageLoader("clearhead.explain.render"), PackageLoader("clearhead.explain.live", "static")]
TEMPLATES = Environment(loader=ChoiceLoader(LOADERS), autoescape=True, undefined=StrictUndefined)


@dataclass(frozen=True)
class _TableCell:
    text: str
    style: str
    kind: str  # "hidden" by the mask, "gap" for what is left out, "sum" of a row, or ""


@dataclass(frozen=True)
class _Table:
    symbol: str
    formula: Markup
    shape: str
    origin: str
    sign: str  # operator before the table
    marks: str
    shift: int
    columns: list[str]
    rows: list[tuple[str, list[_TableCell]]]
    row_entries: str  # indices of the rows, if some are left out
    column_entries: str


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
    arithmetic: list[str]
    tables: list[_Table]


def as_html(trace: Trace, title: str, digits: int = DEFAULT_DIGITS) -> str:
    """Return one self-contained HTML page with keyboard navigation, two themes and a print style."""
    page = TEMPLATES.get_template("page.html")
    config = live_config(trace, title, digits)
    is_live = not isinstance(config, str)
    layout = Layout(trace, lambda step: (*step.operands, step))
    document = partial(
        page.render,
        live={"config": config, "modules": live_modules()} if is_live else None,
        not_live="" if is_live else config,
        title=visible_text(title),
        tokens=[visible_text(token) for token in trace.tokens],
        heads=trace.heads,
        head_name=trace.head_name,
        counting=trace.counting,
        formulas=[(text, Markup(convert(latex, display="block"))) for text, latex in whole_formula(trace)],
        costs=cost_sentences(trace),
        sections=[_section(position, step, trace, layout, digits) for position, step in trace.numbered()],
    )
    text = document(written=True)
    # scripts of a live page write the steps; without them, it shows those written here
    return embed_font(document(written=False) if is_live and len(text.encode()) > MAX_LIVE_PAGE else text)


def _section(position: int, step: Step, trace: Trace, layout: Layout, digits: int) -> _Section:
    return _Section(
        id=_anchor(step, trace),
        position=position,
        heading=step_heading(step, trace),
        formula=Markup(convert(step.latex, display="block")),
        text=step.formula,
        sentence=step_sentence(step, trace),
        shapes=step.shapes,
        cost=step_cost(step),
        how=step.how,
        scaling=step.scaling,
        arithmetic=[visible_text(line) for line in arithmetic_lines(step, trace, digits)],
        tables=list(_tables(step, layout, digits)),
    )


def _anchor(step: Step, trace: Trace) -> str:
    """Return the id of a step's section, used in URLs: weights-2 for head 2, mask-2 for a second mask."""
    if step.head is not None:
        return f"{step.name}-{step.head + 1}"
    same = [other for other in trace.steps if other.name == step.name]
    return step.name if step is same[0] else f"{step.name}-{same.index(step) + 1}"


def _tables(step: Step, layout: Layout, digits: int) -> Iterator[_Table]:
    between, before_result = _OPERATORS.get(step.how, ("", ""))
    for index, operand in enumerate(step.operands):
        sign = "" if index == 0 else "+" if index == 2 and step.name != "concat" else between
        yield _table(layout.view(operand, digits), sign, operand.marks, operand.shift)
    yield _table(layout.view(step, digits), before_result if step.operands else "", "result")


def _table(view: View, sign: str, marks: str, shift: int = 0) -> _Table:
    rows = []
    for row, label in enumerate(view.row_labels):
        cells = [_table_cell(view, row, column) for column in range(len(view.column_labels))]
        if view.sums:
            cells.append(_TableCell(view.sums[row], "", "sum"))
        rows.append((visible_text(label), cells))
    columns = [visible_text(label) for label in view.column_labels] + (["sum"] if view.sums else [])
    entries = (_entries_text(entries) for entries in (view.rows, view.columns))
    formula = Markup(convert(view.latex))
    return _Table(view.symbol, formula, view.shape, view.origin, sign, marks, shift, columns, rows, *entries)


def _entries_text(entries: Entries) -> str:
    """Return the index of each row or column, -1 for a gap; an empty string if none is left out."""
    return ",".join(str(max(entry, -1)) for entry in entries.shown) if entries.left_out else ""


def _table_cell(view: View, row: int, column: int) -> _TableCell:
    """Return a cell with its shade as a CSS variable, which the style sheet mixes with a color of the theme."""
    text, shade = view.cells[row][column], view.shades[row][column]
    style = "" if math.isnan(shade) else f"--{'warm' if shade >= 0 else 'cool'}:{abs(shade):.0%}"
    gap = view.rows.shown[row] < 0 or view.columns.shown[column] < 0
    kind = "gap" if gap else "hidden" if view.is_hidden(row, column) else ""
    return _TableCell(text.replace("-", "−"), style, kind)
