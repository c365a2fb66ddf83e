"""Audits as text: each claim with its verdict, and tables of the cells that differ."""

from __future__ import annotations

import io

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from clearhead._utils.consoles import PlainConsole
from clearhead._utils.text import count_noun, visible_text
from clearhead.explain.audit import Audit, CheckResult
from clearhead.explain.render._audit_wording import VERDICT_SIGNS, result_name
from clearhead.explain.render.text import COLUMN_GAP, truncated
from clearhead.explain.render.wording import DEFAULT_DIGITS, format_number

_VERDICT_COLORS = {"agrees": "green", "differs": "red", "carried": "yellow"}


def audit_as_text(audit: Audit, digits: int = DEFAULT_DIGITS) -> str:
    """Return an audit as plain text."""
    console = PlainConsole(file=io.StringIO(), width=1_000_000, color_system=None)
    print_audit(console, audit, digits)
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def print_audit(console: Console, audit: Audit, digits: int = DEFAULT_DIGITS) -> None:
    """Print each claim with its verdict, and a table of the cells that differ."""
    console.print(Text(visible_text(audit.title), style="bold"))
    if audit.first_error is not None:
        console.print(Text(f"First error: {_error_summary(audit, audit.first_error)}", style="bold"))
    for result in audit.findings:
        console.print(
            Text(f"{VERDICT_SIGNS[result.verdict]} ", style=_VERDICT_COLORS[result.verdict])
            + Text(result_name(result), style="bold")
            + Text(f": {visible_text(result.message)}")
        )
        for cause in result.causes:
            console.print(Text(f"  {visible_text(cause.sentence)}", style="yellow"))
        if result.cells:
            table = _difference_table(result, digits)
            widest = Measurement.get(console, console.options.update(max_width=10_000), table).maximum
            wide = PlainConsole(file=console.file, width=max(widest, console.width), force_terminal=console.is_terminal)
            wide.print(table)  # long lines instead of truncated numbers
    console.print(Text(audit.summary(), style="bold"))


def _error_summary(audit: Audit, error: CheckResult) -> str:
    """Return the first error, its first cause, and the number of results that follow from it."""
    follow = len(audit.following(error))
    cause = f" ({error.causes[0].name})" if error.causes else ""
    followers = f"; {count_noun(follow, 'later claim')} {'follows' if follow == 1 else 'follow'} from it"
    return f"{result_name(error)}: {visible_text(error.message)}{cause}{followers if follow else ''}"


def _difference_table(result: CheckResult, digits: int) -> Table:
    table = Table(box=None, padding=(0, 0, 0, COLUMN_GAP), pad_edge=True)
    carried = any(cell.carried_from for cell in result.cells)
    for name in ("row", "column", "claimed", "computed", "difference", *(["carried from"] if carried else [])):
        side = "left" if name == "row" else "right"
        table.add_column(Text(name, style="dim"), justify=side, no_wrap=True)
    for cell in result.cells:
        claimed = cell.printed.replace("Infinity", "∞")
        values = (format_number(value, digits) for value in (cell.computed, cell.difference))
        cause = [cell.carried_from or ""] if carried else []
        table.add_row(truncated(cell.row_label), truncated(cell.column_label), claimed, *values, *cause)
    return table
