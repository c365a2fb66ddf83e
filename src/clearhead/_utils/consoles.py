"""Rich consoles for text that nobody has checked: markup off, emoji codes off, control characters escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from clearhead._utils.text import printable


class PlainConsole(Console):
    """A console that prints strings as they are written, `[bold]` and `:smile:` included."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # for the command line to deal with


def console_for_output() -> Console:
    """Return a console on standard output; where that is not a terminal, too wide for lines to be cut or wrapped."""
    console = PlainConsole()
    if not console.is_terminal:
        console.width = 1_000_000
    return console


def column_groups(widths: Sequence[int], available: int) -> Iterator[range]:
    """Yield consecutive columns in groups that fit into the available width, each of at least one column."""
    start, used = 0, 0
    for column, width in enumerate(widths):
        if column > start and used + width > available:
            yield range(start, column)
            start, used = column, 0
        used += width
    yield range(start, len(widths))
