"""Command `check`."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from clearhead._utils.consoles import console_for_output
from clearhead.cli.options import DigitsOption, ExampleArgument, format_of
from clearhead.cli.output import write
from clearhead.cli.texts import DraftOption, read_example


class Format(StrEnum):
    text = "text"
    html = "html"
    markdown = "markdown"
    json = "json"
    toml = "toml"


def check(
    example: ExampleArgument,
    output_format: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="Output format (default: by the suffix of --output, or else text); html is an annotated page, markdown"
            " a list of errata, toml the corrected example.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write to this file instead of standard output.")] = None,
    digits: DigitsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    draft: DraftOption = None,
) -> None:
    """Recompute a worked example and compare each of its claims with the result.

    Exit code: 0 if all claims agree, 1 if some differ, 2 if the example cannot be read.
    """
    from clearhead.explain import check
    from clearhead.explain.render import DEFAULT_DIGITS, print_audit, render_audit

    if as_json and output_format not in (None, Format.json):
        raise ValueError(f"--json cannot be combined with --format {output_format}")
    style = format_of(output, Format.json if as_json else output_format, Format.text)
    if style is Format.toml and digits is not None:
        raise ValueError("--digits cannot be combined with --format toml, which keeps the digits of the text")
    if output is not None and os.path.exists(example) and os.path.exists(output) and os.path.samefile(example, output):
        raise ValueError(f"--output is {output}, the text itself; expected another name, so that the text is kept")
    audit = check(read_example(example, draft))
    if style is Format.text and output is None:
        print_audit(console_for_output(), audit, DEFAULT_DIGITS if digits is None else digits)
    else:
        write(render_audit(audit, style.value, digits=digits), output)
    raise typer.Exit(0 if audit.agrees else 1)
