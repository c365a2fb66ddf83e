"""The command line: each command parses, calls one library function and renders. torch waits until one runs."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

import clearhead
from clearhead.files import write_text
from clearhead.worked import BUILT_IN

if TYPE_CHECKING:
    from clearhead.models import Loaded

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


class Dtype(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


Text = Annotated[str | None, typer.Argument(help="A text to read; ordinary English prose where none is given.")]
File = Annotated[list[Path] | None, typer.Option("--file", help="A text file to read, as one text. Repeatable.")]
Model = Annotated[str, typer.Option("--model", help="A folder of Hugging Face files, a .gguf file, or a hub id.")]
Layers = Annotated[str | None, typer.Option(help="Only these layers, from 0, such as 0,3-5.")]
Device = Annotated[str | None, typer.Option(help="Where to run, such as cpu or cuda; a GPU if there is one.")]
InDtype = Annotated[Dtype, typer.Option("--dtype", help="What to compute in.")]
Download = Annotated[bool, typer.Option("--download", help="Fetch the model from the Hugging Face hub if need be.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Output = Annotated[Path | None, typer.Option(help="A file to write JSON to, instead of standard output.")]


@app.command()
def stats(
    model: Model,
    text: Text = None,
    file: File = None,
    layers: Layers = None,
    device: Device = None,
    dtype: InDtype = Dtype.float32,
    download: Download = False,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Run a model on texts; show how broadly, how far and how strongly each head attends."""
    with _one_line_errors():
        texts = _texts(text, file)
        loaded = _load(model, device, dtype, download)
        from clearhead.surveys import statistics
        from clearhead.tables import print_statistics
        from clearhead.worked.terminal import console_for_output

        table = statistics(loaded, _tracked(texts, "texts")).to_dict()
        count = 1 + max(table["layer"], default=-1)
        chosen = _chosen_layers(layers, count)
        rows = [place for place, layer in enumerate(table["layer"]) if layer in chosen]
        table = {name: [values[row] for row in rows] for name, values in table.items()}
        if as_json or output is not None:
            _write(json.dumps({"model": loaded.name, "heads": table}, indent=1) + "\n", output)
        else:
            print_statistics(console_for_output(), table, f"{loaded.name}: means over queries")


@app.command()
def roles(
    model: Model,
    text: Text = None,
    file: File = None,
    treebank: Annotated[
        list[Path] | None, typer.Option(help="Sentences with dependency trees (CoNLL-U, .gz too). Repeatable.")
    ] = None,
    layers: Layers = None,
    device: Device = None,
    dtype: InDtype = Dtype.float32,
    download: Download = False,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Find out what kind of head each is: previous token, sink, induction, syntactic …"""
    with _one_line_errors():
        from clearhead.treebank import read_conllu

        texts = _texts(text, file)
        sentences = [sentence for path in treebank or () for sentence in read_conllu(path)]
        loaded = _load(model, device, dtype, download)
        from clearhead import surveys
        from clearhead.tables import print_roles
        from clearhead.worked.terminal import console_for_output

        with _bar("sentences", len(sentences)) as advance:
            found = surveys.roles(loaded, texts, sentences=sentences, progress=advance)
        chosen = _chosen_layers(layers, 1 + max(layer for _, layer, _ in found.heads))
        if as_json or output is not None:
            _write(found.to_json() + "\n", output)
        else:
            print_roles(console_for_output(), found, [address for address in found.heads if address[1] in chosen])


def _texts(text: str | None, files: list[Path] | None) -> list[str]:
    """What to read: what is given, or a passage of our own."""
    given = [] if text is None else [text]
    for path in files or ():
        try:
            given.append(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not a text in UTF-8 ({error.reason})") from None
    if given:
        return given
    from clearhead.surveys import PASSAGE

    return list(PASSAGE)


def _load(model: str, device: str | None, dtype: Dtype, download: bool) -> Loaded:
    import torch

    try:
        from clearhead.models import load
    except ImportError as error:
        raise ValueError(str(error)) from None
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(where)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device is {where!r}, which cannot be used here: {str(error).splitlines()[0]}") from None
    return load(model, device=place, dtype=getattr(torch, dtype.value), download=download)


def _chosen_layers(layers: str | None, count: int) -> set[int]:
    """The numbers that "0,3-5" means."""
    if layers is None:
        return set(range(count))
    chosen: set[int] = set()
    for part in layers.split(","):
        first, _, last = part.strip().partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            raise ValueError(f"--layers is {layers!r}; expected numbers and ranges such as 0,3-5")
        chosen |= set(range(int(first), int(last or first) + 1))
    if not chosen or max(chosen) >= count:
        raise ValueError(f"--layers is {layers!r}, but the layers are 0 to {count - 1}")
    return chosen


@contextmanager
def _bar(what: str, count: int) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on a terminal's stderr; a function that moves it."""
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not (count and sys.stderr.isatty())) as bar:
        task = bar.add_task(what, total=count)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def _tracked(texts: list[str], what: str) -> Iterator[str]:
    with _bar(what, len(texts)) as advance:
        for number, text in enumerate(texts):
            yield text
            advance(number + 1, len(texts))


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
