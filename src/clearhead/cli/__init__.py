"""Command line of clearhead.

Each command parses its arguments, calls one library function and renders the result. Commands import torch when they
run, so that `--help` stays fast.
"""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

import clearhead
from clearhead.cli import check, doctor, exercise, explain, heads, learn, record, train, view
from clearhead.cli.errors import OneLineErrors
from clearhead.cli.first_steps import first_steps

__all__ = ["app"]

app = typer.Typer(
    cls=OneLineErrors,
    help="Multi-head attention you can see through: explain, measure, record and view it.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"clearhead {clearhead.__version__}")
        raise typer.Exit


@app.callback()
def main(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # escape characters that the terminal cannot encode
            stream.reconfigure(errors="backslashreplace")
    if context.invoked_subcommand is None:
        typer.echo(first_steps())


for command in (
    learn.learn,
    explain.explain,
    check.check,
    exercise.exercise,
    exercise.mark,
    heads.stats,
    heads.roles,
    train.train,
    train.translate,
    record.record,
    view.view,
    doctor.doctor,
):
    app.command()(command)
