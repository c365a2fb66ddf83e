"""Rich consoles for untrusted text: no markup, no emoji codes, escaped control characters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from clearhead._utils.text import printable


class PlainConsole(Console):
    """Console that prints strings literally, including `[bold]` and `:smile:`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # the command line handles it


def console_for_output() -> Console:
    """Return a console on standard output. Files and pipes get a huge width, so that rich does not wrap or crop."""
    console = PlainConsole()
    if not console.is_terminal:
        console.width = 1_000_000
    return console


def column_groups(widths: Sequence[int], available: int) -> Iterator[range]:
    """Yield groups of consecutive columns that fit into the available width, with at least one column each."""
    start, used = 0, 0
    for column, width in enumerate(widths):
        if column > start and used + width > available:
            yield range(start, column)
            start, used = column, 0
        used += width
    yield range(start, len(widths))
