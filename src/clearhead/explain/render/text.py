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
from clearhead.explain.render._arithmetic import arithmetic_lines
from clearhead.explain.render._formula import cost_sentences, whole_formula
from clearhead.explain.render._layout import Layout, View, new_matrices
from clearhead.explain.render.wording import (
    DEFAULT_DIGITS,
    MAX_LABEL_LETTERS,
    step_cost,
    step_heading,
    step_sentence,
)
from clearhead.explain.steps import Trace

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
    """Print the whole formula, then every step with its formula, shapes, arithmetic and matrices, then the cost."""
    layout = Layout(trace, new_matrices)
    console.print(Text(visible_text(title), style="bold"))
    for formula, _ in whole_formula(trace):
        console.print(Text(f"  {formula}", style="cyan"))
    console.print(Text(trace.counting, style="dim"))
    for position, step in trace.numbered():
        console.print()
        console.print(
            Text(f"{position}. {step_heading(step, trace)}:", style="bold"), Text(step.formula, style="bold cyan")
        )
        if sentence := step_sentence(step, trace):
            console.print(Text(sentence, style="italic"))
        console.print(Text("; ".join(part for part in (step.shapes, step_cost(step)) if part), style="dim"))
        for line in arithmetic_lines(step, trace, digits):
            console.print(Text(visible_text(line)))
        for matrix in new_matrices(step):
            view = layout.view(matrix, digits)
            console.print()
            console.print(Text(f"{view.symbol} {view.caption}", style="dim"))
            for index, table in enumerate(_tables(console, view)):
                if index:
                    console.print()
                console.print(table)
    sentences = cost_sentences(trace)
    if sentences:
        console.print()
    for sentence in sentences:
        console.print(Text(sentence))


def _tables(console: Console, view: View) -> Iterator[Table]:
    """Yield one matrix as a table, or as several tables if the terminal is too narrow."""
    rows, columns = ([truncated(label) for label in labels] for labels in (view.row_labels, view.column_labels))
    cells = [
        [Text(cell, style=_shade_style(shade)) for cell, shade in zip(*row, strict=True)]
        for row in zip(view.cells, view.shades, strict=True)
    ]
    if view.sums:
        columns = [*columns, Text("sum", style="dim")]
        cells = [[*row, Text(total, style="dim")] for row, total in zip(cells, view.sums, strict=True)]
    widths = [
        max(columns[column].cell_len, *(row[column].cell_len for row in cells)) + COLUMN_GAP
        for column in range(len(columns))
    ]
    label_width = max(cell_len(view.symbol), *(row.cell_len for row in rows)) + COLUMN_GAP
    for chosen in column_groups(widths, console.width - label_width):
        table = Table(box=None, padding=(0, 0, 0, COLUMN_GAP), pad_edge=False)
        table.add_column(Text(view.symbol, style="cyan"), no_wrap=True)
        for column in chosen:
            table.add_column(columns[column], justify="right", no_wrap=True)
        for label, row in zip(rows, cells, strict=True):
            table.add_row(label, *(row[column] for column in chosen))
        yield table


def _shade_style(level: float) -> Style:
    if math.isnan(level):  # a masked cell or a gap
        return Style(dim=True)
    triplet = blend_rgb(_NEUTRAL_COLOR, _POSITIVE_COLOR if level >= 0 else _NEGATIVE_COLOR, cross_fade=abs(level))
    return Style(color="white", bgcolor=Color.from_triplet(triplet))


def truncated(label: str) -> Text:
    """Return a label, shortened to fit a column."""
    text = Text(visible_text(label))
    text.truncate(MAX_LABEL_LETTERS, overflow="ellipsis")
    return text
