"""Worked examples and audits as text: tables with shaded cells in a terminal, plain text in files and pipes."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator

from rich.cells import cell_len
from rich.color import Color, blend_rgb
from rich.color_triplet import ColorTriplet
from rich.console import Console
from rich.measure import Measurement
from rich.style import Style
from rich.table import Table
from rich.text import Text

from clearhead._utils.consoles import PlainConsole, column_groups
from clearhead._utils.text import visible_text
from clearhead.explain.audit import Audit, CheckResult
from clearhead.explain.render.wording import (
    DEFAULT_DIGITS,
    MAX_LABEL_LETTERS,
    cell_shades,
    format_matrix,
    format_number,
    step_cost,
    step_heading,
    step_sentence,
)
from clearhead.explain.steps import Axis, Operand, Step, Trace

_NEUTRAL_COLOR, _POSITIVE_COLOR, _NEGATIVE_COLOR = (
    ColorTriplet(28, 30, 34),
    ColorTriplet(0, 102, 178),
    ColorTriplet(178, 74, 0),
)
_COLUMN_GAP = 2
_VERDICT_SIGNS = {"agrees": ("✓", "green"), "differs": ("✗", "red"), "carried": ("→", "yellow")}


def as_text(trace: Trace, title: str, digits: int = DEFAULT_DIGITS) -> str:
    """Return a worked example as plain text."""
    console = PlainConsole(file=io.StringIO(), width=1_000_000, color_system=None)
    print_trace(console, trace, title, digits)
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def print_trace(console: Console, trace: Trace, title: str, digits: int = DEFAULT_DIGITS) -> None:
    """Print every step with its formula, shapes and matrices, including the learned matrices that it uses."""
    console.print(Text(visible_text(title), style="bold"))
    for count, step in enumerate(trace, 1):
        console.print()
        console.print(
            Text(f"{count}. {step_heading(step, trace)}:", style="bold"), Text(step.formula, style="bold cyan")
        )
        console.print(Text(step_sentence(step), style="italic"))
        console.print(Text("; ".join(part for part in (step.shapes, step_cost(step)) if part), style="dim"))
        for matrix in (*(operand for operand in step.operands if operand.new), step):
            for table in _tables(console, trace, matrix, digits):
                console.print()
                console.print(table)


def _tables(console: Console, trace: Trace, matrix: Step | Operand, digits: int) -> Iterator[Table]:
    """Yield one matrix as a table, or as several tables if the terminal is too narrow."""
    rows, columns = (_label_texts(trace, axis, count) for axis, count in _axes(matrix))
    cells = format_matrix(matrix.values, digits)
    levels = cell_shades(matrix.values)
    widths = [
        max(columns[column].cell_len, *(len(row[column]) for row in cells)) + _COLUMN_GAP
        for column in range(len(columns))
    ]
    label_width = max(cell_len(matrix.symbol), *(row.cell_len for row in rows)) + _COLUMN_GAP
    for chosen in column_groups(widths, console.width - label_width):
        table = Table(box=None, padding=(0, 0, 0, _COLUMN_GAP), pad_edge=False)
        table.add_column(Text(matrix.symbol, style="cyan"), no_wrap=True)
        for column in chosen:
            table.add_column(columns[column], justify="right", no_wrap=True)
        for label, row, level in zip(rows, cells, levels, strict=True):
            table.add_row(label, *(Text(row[column], style=_shade_style(level[column])) for column in chosen))
        yield table


def _axes(matrix: Step | Operand) -> tuple[tuple[Axis, int], tuple[Axis, int]]:
    return (matrix.rows, matrix.values.shape[0]), (matrix.columns, matrix.values.shape[1])


def _label_texts(trace: Trace, axis: Axis, count: int) -> list[Text]:
    return [_truncated(label) for label in trace.labels(axis, count)]


def _shade_style(level: float) -> Style:
    if math.isnan(level):  # an infinite, masked score
        return Style(dim=True)
    triplet = blend_rgb(_NEUTRAL_COLOR, _POSITIVE_COLOR if level >= 0 else _NEGATIVE_COLOR, cross_fade=abs(level))
    return Style(color="white", bgcolor=Color.from_triplet(triplet))


def print_audit(console: Console, audit: Audit, digits: int = DEFAULT_DIGITS) -> None:
    """Print each claim with its verdict, and a table of the cells that differ."""
    console.print(Text(visible_text(audit.title), style="bold"))
    for result in audit.findings:
        sign, color = _VERDICT_SIGNS[result.verdict]
        console.print(
            Text(f"{sign} ", style=color)
            + Text(_result_name(result), style="bold")
            + Text(f": {visible_text(result.message)}")
        )
        if result.cells:
            table = _difference_table(result, digits)
            widest = Measurement.get(console, console.options.update(max_width=10_000), table).maximum
            wide = PlainConsole(file=console.file, width=max(widest, console.width), force_terminal=console.is_terminal)
            wide.print(table)  # long lines instead of truncated numbers
    agree, differ, carried = (audit.count(verdict) for verdict in ("agrees", "differs", "carried"))
    summary = f"{len(audit.findings)} checked: {agree} agree, {differ} differ, {carried} carried"
    console.print(Text(summary, style="bold"))


def _result_name(result: CheckResult) -> str:
    head = "" if result.head is None else f", head {result.head + 1}"
    return f"{result.step}{head}" if result.claim is None else f"claim {result.claim}, {result.step}{head}"


def _difference_table(result: CheckResult, digits: int) -> Table:
    table = Table(box=None, padding=(0, 0, 0, _COLUMN_GAP), pad_edge=True)
    carried = any(cell.carried_from for cell in result.cells)
    for name in ("row", "column", "claimed", "computed", "difference", *(["carried from"] if carried else [])):
        side = "left" if name == "row" else "right"
        table.add_column(Text(name, style="dim"), justify=side, no_wrap=True)
    for cell in result.cells:
        claimed = cell.printed.replace("Infinity", "∞")
        values = (format_number(value, digits) for value in (cell.computed, cell.difference))
        cause = [cell.carried_from or ""] if carried else []
        table.add_row(_truncated(cell.row_label), _truncated(cell.column_label), claimed, *values, *cause)
    return table


def _truncated(label: str) -> Text:
    text = Text(visible_text(label))
    text.truncate(MAX_LABEL_LETTERS, overflow="ellipsis")
    return text
