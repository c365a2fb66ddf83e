"""Commands `explain` and `check`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from clearhead._utils.consoles import console_for_output
from clearhead.cli.options import JsonOption
from clearhead.cli.output import write
from clearhead.explain import BUILT_IN


class Format(StrEnum):
    text = "text"
    html = "html"
    markdown = "markdown"
    latex = "latex"
    json = "json"
    toml = "toml"


ExampleArgument = Annotated[
    str, typer.Argument(metavar="NAME|FILE", help=f"A built-in example ({', '.join(BUILT_IN)}) or a TOML file.")
]
DigitsOption = Annotated[
    int | None, typer.Option(help="Digits after the decimal point (default: 3; in JSON: all).", min=0, max=15)
]


def explain(
    example: ExampleArgument,
    output_format: Annotated[
        Format, typer.Option("--format", help="Output format; toml writes the example itself, as a file to edit.")
    ] = Format.text,
    output: Annotated[Path | None, typer.Option(help="Write to this file instead of standard output.")] = None,
    digits: DigitsOption = None,
    step: Annotated[list[str] | None, typer.Option(help="Show only this step, such as scores. Repeatable.")] = None,
    head: Annotated[
        list[int] | None, typer.Option(help="Show only the steps of this head, counted from 1. Repeatable.")
    ] = None,
) -> None:
    """Write out an attention calculation step by step, with all its numbers."""
    from clearhead.explain import load
    from clearhead.explain.render import DEFAULT_DIGITS, print_trace, render

    worked = load(example)
    if output_format is Format.toml:
        if step or head or digits is not None:
            raise ValueError(
                "--step, --head and --digits cannot be combined with --format toml, which writes the whole example"
            )
        write(worked.to_toml(), output)
        return
    trace = worked.trace().select(step or (), [index - 1 for index in head or ()])
    if output_format is Format.text and output is None:
        print_trace(console_for_output(), trace, worked.title, DEFAULT_DIGITS if digits is None else digits)
    else:
        write(render(trace, output_format.value, title=worked.title, digits=digits), output)


def check(example: ExampleArgument, digits: DigitsOption = None, as_json: JsonOption = False) -> None:
    """Recompute a worked example and compare each of its claims with the result.

    Exit code: 0 if all claims agree, 1 if some differ, 2 if the example cannot be read.
    """
    from clearhead.explain import check
    from clearhead.explain.render import DEFAULT_DIGITS, print_audit

    audit = check(example)
    if as_json:
        typer.echo(audit.to_json())
    else:
        print_audit(console_for_output(), audit, DEFAULT_DIGITS if digits is None else digits)
    raise typer.Exit(0 if audit.agrees else 1)
