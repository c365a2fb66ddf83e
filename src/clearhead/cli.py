"""The command line: each command parses, calls one library function and renders. torch waits until one runs."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import clearhead
from clearhead.files import write_text
from clearhead.worked import BUILT_IN

app = typer.Typer(
    help="Multi-head attention you can see through.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"clearhead {clearhead.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show a letter is no reason to stop
            stream.reconfigure(errors="backslashreplace")


class Style(StrEnum):
    text = "text"
    html = "html"
    markdown = "markdown"
    latex = "latex"
    json = "json"
    toml = "toml"


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Input that is wrong, or output that fails, ends in one line on stderr and exit code 2, never in a traceback."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read it has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(128 + signal.SIGPIPE) from None
    except (ValueError, OSError) as error:
        typer.echo(f"clearhead: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(2) from None


def _write(text: str, output: Path | None) -> None:
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_text(output, text)
        typer.echo(f"wrote {output}", err=True)


Example = Annotated[
    str, typer.Argument(metavar="NAME|FILE", help=f"A built-in example ({', '.join(BUILT_IN)}) or a TOML file.")
]
Digits = Annotated[int | None, typer.Option(help="Digits after the point.", min=0, max=15)]


@app.command()
def explain(
    example: Example,
    style: Annotated[
        Style, typer.Option("--format", help="What to write; toml is the example itself, as a file to edit.")
    ] = Style.text,
    output: Annotated[Path | None, typer.Option(help="A file to write to, instead of standard output.")] = None,
    digits: Digits = None,
    step: Annotated[list[str] | None, typer.Option(help="Only this step, such as scores. Repeatable.")] = None,
    head: Annotated[list[int] | None, typer.Option(help="Only this head's steps, from 1. Repeatable.")] = None,
) -> None:
    """Write an attention calculation out step by step, with its real numbers."""
    from clearhead.worked.reading import load
    from clearhead.worked.render import render
    from clearhead.worked.terminal import console_for_output, print_trace
    from clearhead.worked.wording import DIGITS

    with _one_line_errors():
        found = load(example)
        if style is Style.toml:
            if step or head or digits is not None:
                raise ValueError("--step, --head and --digits do not go with --format toml, which is the whole example")
            _write(found.to_toml(), output)
            return
        trace = found.trace().select(step or (), [number - 1 for number in head or ()])
        if style is Style.text and output is None:
            print_trace(console_for_output(), trace, found.title, DIGITS if digits is None else digits)
        else:
            _write(render(trace, style.value, title=found.title, digits=digits), output)


@app.command()
def check(
    example: Example,
    digits: Digits = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Recompute a worked example and report each of its claims. Exit 0: all agree; 1: not all; 2: unreadable."""
    from clearhead.worked.check import check
    from clearhead.worked.terminal import console_for_output, print_audit
    from clearhead.worked.wording import DIGITS

    with _one_line_errors():
        audit = check(example)
        if as_json:
            typer.echo(audit.to_json())
        else:
            print_audit(console_for_output(), audit, DIGITS if digits is None else digits)
    raise typer.Exit(0 if audit.agrees else 1)


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False) -> None:
    """Show versions, devices, and which backend can do what on this machine."""
    from clearhead.doctor import diagnose

    found = diagnose()
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(found), indent=2))
        return
    console = Console()
    console.print("  ".join(f"[bold]{name}[/bold] {version}" for name, version in found.versions.items()))
    for device in found.devices:
        console.print(device)
    table = Table("problem", "device", "backends, fastest first", "refused, and why", title="What runs where")
    for case in found.cases:
        reasons = "\n".join(f"{backend}: {'; '.join(why)}" for backend, why in case.refusals.items())
        table.add_row(case.name, case.device, ", ".join(case.able), reasons)
    console.print(table)
