"""Worked examples and audits in a terminal: tables with warm cells, or plain text where the output is no terminal."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.color import Color, blend_rgb
from rich.color_triplet import ColorTriplet
from rich.console import Console
from rich.measure import Measurement
from rich.style import Style
from rich.table import Table
from rich.text import Text

from clearhead._utils.consoles import PlainConsole
from clearhead._utils.text import visible_text
from clearhead.explain.audit import Audit, Finding
from clearhead.explain.render.wording import DIGITS, LONGEST, cost, heading, number, sentence, typeset, warmth
from clearhead.explain.steps import Axis, Operand, Step, Trace

_COLD, _POSITIVE, _NEGATIVE = ColorTriplet(28, 30, 34), ColorTriplet(0, 102, 178), ColorTriplet(178, 74, 0)
_GAP = 2  # between columns
_VERDICTS = {"agrees": ("✓", "green"), "differs": ("✗", "red"), "carried": ("→", "yellow")}


def as_text(trace: Trace, title: str, digits: int = DIGITS) -> str:
    """A worked example as plain text."""
    console = PlainConsole(file=io.StringIO(), width=1_000_000, color_system=None)
    print_trace(console, trace, title, digits)
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def print_trace(console: Console, trace: Trace, title: str, digits: int = DIGITS) -> None:
    """Every step with its formula, its shapes, and its matrices; learned matrices where they are first read."""
    console.print(Text(visible_text(title), style="bold"))
    for count, step in enumerate(trace, 1):
        console.print()
        console.print(Text(f"{count}. {heading(step, trace)}:", style="bold"), Text(step.formula, style="bold cyan"))
        console.print(Text(sentence(step), style="italic"))
        console.print(Text("; ".join(part for part in (step.shapes, cost(step)) if part), style="dim"))
        for matrix in (*(operand for operand in step.operands if operand.new), step):
            for table in _tables(console, trace, matrix, digits):
                console.print()
                console.print(table)


def _tables(console: Console, trace: Trace, matrix: Step | Operand, digits: int) -> Iterator[Table]:
    """One matrix, in several tables side by side in meaning where a terminal is too narrow for one."""
    rows, columns = (_labels(trace, axis, count) for axis, count in _axes(matrix))
    cells = typeset(matrix.values, digits)
    levels = warmth(matrix.values)
    widths = [max(columns[place].cell_len, *(len(row[place]) for row in cells)) + _GAP for place in range(len(columns))]
    before = max(cell_len(matrix.symbol), *(row.cell_len for row in rows)) + _GAP
    for chosen in fitting(widths, console.width - before):
        table = Table(box=None, padding=(0, 0, 0, _GAP), pad_edge=False)
        table.add_column(Text(matrix.symbol, style="cyan"), no_wrap=True)
        for place in chosen:
            table.add_column(columns[place], justify="right", no_wrap=True)
        for label, row, level in zip(rows, cells, levels, strict=True):
            table.add_row(label, *(Text(row[place], style=_style(level[place])) for place in chosen))
        yield table


def _axes(matrix: Step | Operand) -> tuple[tuple[Axis, int], tuple[Axis, int]]:
    return (matrix.rows, matrix.values.shape[0]), (matrix.columns, matrix.values.shape[1])


def _labels(trace: Trace, axis: Axis, count: int) -> list[Text]:
    return [_short(label) for label in trace.labels(axis, count)]


def fitting(widths: Sequence[int], room: int) -> Iterator[range]:
    """Columns in groups that fit into the room, each of at least one."""
    start, used = 0, 0
    for place, width in enumerate(widths):
        if place > start and used + width > room:
            yield range(start, place)
            start, used = place, 0
        used += width
    yield range(start, len(widths))


def _style(level: float) -> Style:
    if math.isnan(level):  # infinite: a score that the mask has closed
        return Style(dim=True)
    triplet = blend_rgb(_COLD, _POSITIVE if level >= 0 else _NEGATIVE, cross_fade=abs(level))
    return Style(color="white", bgcolor=Color.from_triplet(triplet))


def print_audit(console: Console, audit: Audit, digits: int = DIGITS) -> None:
    """Each claim with its verdict, and a table of the cells that differ."""
    console.print(Text(visible_text(audit.title), style="bold"))
    for finding in audit.findings:
        sign, colour = _VERDICTS[finding.verdict]
        console.print(
            Text(f"{sign} ", style=colour)
            + Text(_name(finding), style="bold")
            + Text(f": {visible_text(finding.message)}")
        )
        if finding.cells:
            table = _differences(finding, digits)
            widest = Measurement.get(console, console.options.update(max_width=10_000), table).maximum
            wide = PlainConsole(file=console.file, width=max(widest, console.width), force_terminal=console.is_terminal)
            wide.print(table)  # a line that is too long rather than a number that is cut
    agree, differ, carried = (audit.count(verdict) for verdict in ("agrees", "differs", "carried"))
    summary = f"{len(audit.findings)} checked: {agree} agree, {differ} differ, {carried} carried"
    console.print(Text(summary, style="bold"))


def _name(finding: Finding) -> str:
    head = "" if finding.head is None else f", head {finding.head + 1}"
    return f"{finding.step}{head}" if finding.claim is None else f"claim {finding.claim}, {finding.step}{head}"


def _differences(finding: Finding, digits: int) -> Table:
    table = Table(box=None, padding=(0, 0, 0, _GAP), pad_edge=True)
    carried = any(cell.carried_from for cell in finding.cells)
    for name in ("row", "column", "claimed", "computed", "difference", *(["carried from"] if carried else [])):
        side = "left" if name == "row" else "right"
        table.add_column(Text(name, style="dim"), justify=side, no_wrap=True)
    for cell in finding.cells:
        claimed = cell.printed.replace("Infinity", "∞")
        numbers = (number(value, digits) for value in (cell.computed, cell.difference))
        cause = [cell.carried_from or ""] if carried else []
        table.add_row(_short(cell.row_label), _short(cell.column_label), claimed, *numbers, *cause)
    return table


def _short(label: str) -> Text:
    shown = Text(visible_text(label))
    shown.truncate(LONGEST, overflow="ellipsis")
    return shown
