"""Output functions shared by several commands: text, files, progress bars, and folders for partial results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console

from clearhead._utils.files import resolve_target, write_text
from clearhead._utils.text import printable
from clearhead.cli.errors import print_stderr


def write(text: str, output: Path | None) -> None:
    """Write text to a file, or to standard output."""
    if output is None:
        typer.echo(printable(text) if sys.stdout.isatty() else text, nl=False)
    else:
        write_text(output, text)
        print_stderr(f"wrote {output}")


@contextmanager
def progress_bar(label: str, count: int) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal's stderr; yield the function that moves it."""
    from rich.progress import Progress

    from clearhead.distributed.process_group import is_main_process

    silent = not (count and sys.stderr.isatty() and is_main_process())
    with Progress(console=Console(stderr=True), transient=True, disable=silent) as bar:
        task = bar.add_task(label, total=count)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def results_folder(output: Path | None) -> Iterator[Path | None]:
    """Yield a folder for partial results next to the output file, and remove it after success.

    Yields None if the output is standard output, a terminal or a pipe.
    """
    target = None if output is None else resolve_target(output)
    if output is None or (target is not None and target.exists() and not target.is_file()):
        yield None
        return
    folder = output.with_name(f".{output.name}.parts")  # named after a symbolic link, not after its target
    yield folder
    from clearhead.analysis.resumable import discard_results
    from clearhead.distributed.process_group import is_main_process

    if is_main_process():
        discard_results(folder)
