"""The command line: each command parses, calls one library function and renders. torch waits until one runs."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import clearhead

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
    pass


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
