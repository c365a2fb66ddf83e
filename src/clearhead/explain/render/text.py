"""Worked examples as text: tables with shaded cells in a terminal, plain text in files and pipes."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator

from rich.cells import cell_len
from rich.color import Color, blend_rgb
from rich.color_triplet import ColorTriplet
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from clearhead._utils.consoles import PlainConsole, column_groups
from clearhead._utils.text import visible_text
from clearhead.explain.render.wording import (
    DEFAULT_DIGITS,
    MAX_LABEL_LETTERS,
    cell_shades,
    format_matrix,
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
COLUMN_GAP = 2


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
        max(columns[column].cell_len, *(len(row[column]) for row in cells)) + COLUMN_GAP
        for column in range(len(columns))
    ]
    label_width = max(cell_len(matrix.symbol), *(row.cell_len for row in rows)) + COLUMN_GAP
    for chosen in column_groups(widths, console.width - label_width):
        table = Table(box=None, padding=(0, 0, 0, COLUMN_GAP), pad_edge=False)
        table.add_column(Text(matrix.symbol, style="cyan"), no_wrap=True)
        for column in chosen:
            table.add_column(columns[column], justify="right", no_wrap=True)
        for label, row, level in zip(rows, cells, levels, strict=True):
            table.add_row(label, *(Text(row[column], style=_shade_style(level[column])) for column in chosen))
        yield table


def _axes(matrix: Step | Operand) -> tuple[tuple[Axis, int], tuple[Axis, int]]:
    return (matrix.rows, matrix.values.shape[0]), (matrix.columns, matrix.values.shape[1])


def _label_texts(trace: Trace, axis: Axis, count: int) -> list[Text]:
    return [truncated(label) for label in trace.labels(axis, count)]


def _shade_style(level: float) -> Style:
    if math.isnan(level):  # an infinite, masked score
        return Style(dim=True)
    triplet = blend_rgb(_NEUTRAL_COLOR, _POSITIVE_COLOR if level >= 0 else _NEGATIVE_COLOR, cross_fade=abs(level))
    return Style(color="white", bgcolor=Color.from_triplet(triplet))


def truncated(label: str) -> Text:
    """Return a label, shortened to fit a column."""
    text = Text(visible_text(label))
    text.truncate(MAX_LABEL_LETTERS, overflow="ellipsis")
    return text
