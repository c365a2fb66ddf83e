"""Commands `exercise` and `mark`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from clearhead.cli.errors import print_stderr
from clearhead.cli.options import ExampleArgument, format_of
from clearhead.cli.output import progress_bar, write
from clearhead.cli.texts import read_example


class SheetFormat(StrEnum):
    html = "html"
    markdown = "markdown"
    latex = "latex"
    toml = "toml"


class MarksFormat(StrEnum):
    text = "text"
    json = "json"
    markdown = "markdown"
    html = "html"
    csv = "csv"


def exercise(
    example: ExampleArgument,
    blank: Annotated[
        str, typer.Option(help="Steps to leave blank, such as weights,output or weights:1 for head 1 only.")
    ] = "weights",
    seed: Annotated[int, typer.Option(help="Seed of the numbers; another seed gives another sheet.", min=0)] = 0,
    digits: Annotated[int, typer.Option(help="Digits after the decimal point of every answer.", min=1, max=6)] = 2,
    points: Annotated[
        str | None,
        typer.Option(help="Points for steps, such as weights=6,output=4 (default: one point for each cell)."),
    ] = None,
    self_check: Annotated[
        bool, typer.Option("--self-check", help="Let the HTML page mark the answers of the student.")
    ] = False,
    output_format: Annotated[
        SheetFormat | None,
        typer.Option("--format", help="Format of the sheet (default: by the suffix of --output, or else markdown)."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write to this file instead of standard output.")] = None,
) -> None:
    """Make a sheet for students: a calculation with new numbers, in which some steps are left blank.

    No format contains the solutions. The TOML sheet is also the file that `clearhead mark` compares answers with.
    """
    from clearhead.explain.exercises import exercise, render_sheet

    style = format_of(output, output_format, SheetFormat.markdown)
    sheet = exercise(read_example(example), blank, seed=seed, digits=digits, points=_read_points(points))
    write(render_sheet(sheet, style.value, self_check=self_check), output)


def mark(
    answers: Annotated[Path, typer.Argument(metavar="FILE|FOLDER", help="An answer file, or a folder of them.")],
    exercise: Annotated[
        Path | None,
        typer.Option(
            help="The teacher's TOML sheet, or a folder with one for each seed, to compare given numbers with."
        ),
    ] = None,
    output_format: Annotated[
        MarksFormat | None,
        typer.Option("--format", help="Output format (default: by the suffix of --output, or else text)."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write to this file instead of standard output.")] = None,
) -> None:
    """Mark answers with points for each step. Numbers that follow from an earlier error cost nothing.

    Exit code: 0 if all answers get full credit, 1 if some do not, 2 if a file cannot be read. A folder is marked
    completely, even if some of its files cannot be read.
    """
    from clearhead.explain.exercises import mark, mark_folder, render_marks

    style = format_of(output, output_format, MarksFormat.text)
    if not answers.is_dir():
        marks = mark(answers, exercise)
        write(render_marks(marks, style.value), output)
        raise typer.Exit(0 if marks.complete else 1)
    with progress_bar("marking", 1) as show_progress:
        group = mark_folder(answers, exercise, progress=show_progress)
    write(render_marks(group, style.value), output)
    for entry in group.unreadable:
        print_stderr(f"clearhead: {entry.file}: {entry.reason}")
    raise typer.Exit(2 if group.unreadable else 0 if group.complete else 1)


def _read_points(text: str | None) -> dict[str, float]:
    """Read points such as weights=6,output=4."""
    points = {}
    for entry in text.split(",") if text else ():
        name, _, value = entry.partition("=")
        try:
            points[name.strip()] = float(value)
        except ValueError:
            raise ValueError(f"--points has {entry!r}; expected a step and its points, such as weights=6") from None
    return points
