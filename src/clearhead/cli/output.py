"""Output functions shared by several commands: text, files, progress bars, and folders for partial results."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from clearhead._utils.files import resolve_target, write_bytes, write_text
from clearhead._utils.progress import StageProgress
from clearhead._utils.text import printable
from clearhead.cli.errors import print_stderr

if TYPE_CHECKING:
    from rich.progress import TaskID


def write(text: str, output: Path | None) -> None:
    """Write text to a file, or to standard output."""
    if output is None:
        typer.echo(printable(text) if sys.stdout.isatty() else text, nl=False)
    else:
        write_text(output, text)
        print_stderr(f"wrote {output}")


def check_binary_output(output: Path | None) -> None:
    """Raise if a binary format would be written to a terminal."""
    if output is None and sys.stdout.isatty():
        raise ValueError("--output is missing; expected a file, because a terminal cannot show a binary format")


def write_binary(content: bytes, output: Path | None) -> None:
    """Write binary content to a file, or to standard output."""
    if output is None:
        sys.stdout.buffer.write(content)
        sys.stdout.flush()
    else:
        write_bytes(output, content)
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
def stage_progress() -> Iterator[StageProgress]:
    """Show named stages with a moving bar on a terminal's stderr; yield the function that reports them."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    # torchrun sets RANK; clearhead.distributed imports torch, which itself takes seconds
    silent = not (sys.stderr.isatty() and os.environ.get("RANK", "0") == "0")
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=silent) as bar:
        shown: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in shown:  # the total of a task cannot become unknown again, so each stage is a new one
                for task in bar.task_ids:
                    bar.remove_task(task)
                shown.clear()
                shown[stage] = bar.add_task(stage, total=None, count="")  # a bar without a total pulses
            count = f"{done:,}/{total:,}" if total else ""
            bar.update(shown[stage], completed=done, total=total or None, count=count)

        report("importing torch", 0, 0)
        yield report


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
