"""Command `explain`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from clearhead._utils.consoles import console_for_output
from clearhead.cli.options import EXAMPLE_HELP, DigitsOption
from clearhead.cli.output import write

CellOption = Annotated[
    list[str] | None,
    typer.Option(
        "--cell",
        help="Show the arithmetic of this cell: step:row,column or step.head:row,column, counted from 1. Repeatable.",
        metavar="STEP:ROW,COLUMN",
    ),
]


class Format(StrEnum):
    text = "text"
    html = "html"
    markdown = "markdown"
    latex = "latex"
    json = "json"
    toml = "toml"


def explain(
    example: Annotated[str | None, typer.Argument(metavar="NAME|FILE", help=EXAMPLE_HELP)] = None,
    output_format: Annotated[
        Format, typer.Option("--format", help="Output format; toml writes the example itself, as a file to edit.")
    ] = Format.text,
    output: Annotated[Path | None, typer.Option(help="Write to this file instead of standard output.")] = None,
    digits: DigitsOption = None,
    step: Annotated[list[str] | None, typer.Option(help="Show only this step, such as scores. Repeatable.")] = None,
    head: Annotated[
        list[int] | None, typer.Option(help="Show only the steps of this head, counted from 1. Repeatable.")
    ] = None,
    cell: CellOption = None,
    list_examples: Annotated[bool, typer.Option("--list", help="List the built-in examples.")] = False,
) -> None:
    """Write out an attention calculation step by step, with all its numbers."""
    from clearhead.explain import load
    from clearhead.explain.render import DEFAULT_DIGITS, print_trace, render

    if list_examples:
        from clearhead.cli.tables import print_examples

        print_examples(console_for_output())
        return
    if example is None:
        raise ValueError("NAME|FILE is missing; expected a built-in example (--list shows them) or a TOML file")
    worked = load(example)
    if output_format is Format.toml:
        if step or head or cell or digits is not None:
            raise ValueError(
                "--step, --head, --cell and --digits cannot be combined with --format toml, which writes the whole"
                " example"
            )
        write(worked.to_toml(), output)
        return
    heads = [index - 1 for index in head or ()]
    if cell and step:
        raise ValueError("--step and --cell are both given; expected one of them, because a cell names its step")
    trace = worked.trace().select_cells(cell, heads) if cell else worked.trace().select(step or (), heads)
    if output_format is Format.text and output is None:
        print_trace(console_for_output(), trace, worked.title, DEFAULT_DIGITS if digits is None else digits)
    else:
        write(render(trace, output_format.value, title=worked.title, digits=digits), output)
