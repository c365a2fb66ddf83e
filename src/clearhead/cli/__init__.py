"""The command line: each command parses, calls one library function and renders. torch waits until one runs."""

from __future__ import annotations

import dataclasses
import io
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text as Styled

import clearhead
from clearhead._utils.consoles import console_for_output
from clearhead._utils.files import resolve_target, write_text
from clearhead._utils.text import json_text, printable, visible_text
from clearhead.cli.errors import OneLineErrors, say
from clearhead.cli.options import (
    chosen_layers,
    joined,
    kept_beside,
    load_what_is_read,
    name_of,
    progress_bar,
    usable_device,
)
from clearhead.explain import BUILT_IN

app = typer.Typer(
    cls=OneLineErrors,
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


def _write(text: str, output: Path | None) -> None:
    if output is None:
        typer.echo(printable(text) if sys.stdout.isatty() else text, nl=False)
    else:
        write_text(output, text)
        say(f"wrote {output}")


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
    from clearhead.explain import load
    from clearhead.explain.render import DEFAULT_DIGITS, print_trace, render

    found = load(example)
    if style is Style.toml:
        if step or head or digits is not None:
            raise ValueError("--step, --head and --digits do not go with --format toml, which is the whole example")
        _write(found.to_toml(), output)
        return
    trace = found.trace().select(step or (), [number - 1 for number in head or ()])
    if style is Style.text and output is None:
        print_trace(console_for_output(), trace, found.title, DEFAULT_DIGITS if digits is None else digits)
    else:
        _write(render(trace, style.value, title=found.title, digits=digits), output)


@app.command()
def check(
    example: Example,
    digits: Digits = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Recompute a worked example and report each of its claims. Exit 0: all agree; 1: not all; 2: unreadable."""
    from clearhead.explain import check
    from clearhead.explain.render import DEFAULT_DIGITS, print_audit

    audit = check(example)
    if as_json:
        typer.echo(audit.to_json())
    else:
        print_audit(console_for_output(), audit, DEFAULT_DIGITS if digits is None else digits)
    raise typer.Exit(0 if audit.agrees else 1)


class Dtype(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


Text = Annotated[
    str | None,
    typer.Argument(
        metavar="TEXT|RECORDING",
        help="A text to read, ordinary English prose where none is given; or a .safetensors file made by `record`.",
    ),
]
File = Annotated[list[Path] | None, typer.Option("--file", help="A text file to read, as one text. Repeatable.")]
Model = Annotated[
    str | None,
    typer.Option("--model", help="A folder of Hugging Face files or of a run, a .gguf file, a hub id, or en-ja."),
]
Layers = Annotated[str | None, typer.Option(help="Only these layers, from 0, such as 0,3-5.")]
Device = Annotated[str | None, typer.Option(help="Where to run, such as cpu or cuda; a GPU if there is one.")]
InDtype = Annotated[Dtype, typer.Option("--dtype", help="What to compute in.")]
Download = Annotated[bool, typer.Option("--download", help="Fetch the model from the Hugging Face hub if need be.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Output = Annotated[Path | None, typer.Option(help="A file to write JSON to, instead of standard output.")]


@app.command()
def stats(
    text: Text = None,
    file: File = None,
    model: Model = None,
    layers: Layers = None,
    device: Device = None,
    dtype: InDtype = Dtype.float32,
    download: Download = False,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Run a model on texts; show how broadly, how far and how strongly each head attends. torchrun shares them out."""
    with joined(device) as process_group:
        if output is not None:
            resolve_target(output)
        loaded, texts = load_what_is_read(text, file, model, device, dtype.value, download)
        from clearhead.analysis.corpus import statistics
        from clearhead.cli.tables import print_statistics

        chosen = chosen_layers(layers, loaded)
        with progress_bar("texts", len(texts)) as advance, kept_beside(output) as keep:
            table = statistics(loaded, texts, process_group=process_group, keep=keep, progress=advance).to_dict()
            rows = [place for place, layer in enumerate(table["layer"]) if layer in chosen]
            table = {name: [values[row] for row in rows] for name, values in table.items()}
            if not process_group.is_main:
                return
            if as_json or output is not None:
                _write(json_text({"model": name_of(loaded), "heads": table}, indent=1) + "\n", output)
            else:
                print_statistics(console_for_output(), table, f"{visible_text(name_of(loaded))}: means over queries")


@app.command()
def roles(
    text: Text = None,
    file: File = None,
    model: Model = None,
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
    """Find out what kind of head each is: previous token, sink, induction, syntactic … torchrun shares texts out."""
    with joined(device) as process_group:
        if output is not None:
            resolve_target(output)
        from clearhead.analysis.conllu import read_conllu

        sentences = [sentence for path in treebank or () for sentence in read_conllu(path)]
        loaded, texts = load_what_is_read(text, file, model, device, dtype.value, download)
        from clearhead.analysis import corpus
        from clearhead.cli.tables import print_roles

        chosen = chosen_layers(layers, loaded)
        what, count = ("sentences", len(sentences)) if sentences else ("texts", len(texts))
        with progress_bar(what, count) as advance, kept_beside(output) as keep:
            options = {"sentences": sentences, "process_group": process_group, "keep": keep, "progress": advance}
            found = corpus.roles(loaded, texts, **options).part(lambda address: address[1] in chosen)
            if not process_group.is_main:
                return
            if as_json or output is not None:
                _write(found.to_json() + "\n", output)
            else:
                print_roles(console_for_output(), found)


@app.command()
def train(
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|SOURCE,TARGET",
            help="Parallel text: a TSV file, or two files with a comma between (.gz too). Repeatable."
            " The built-in grammar where none is given.",
        ),
    ] = None,
    valid: Annotated[
        list[str] | None, typer.Option(metavar="FILE|SOURCE,TARGET", help="Pairs to validate with. Repeatable.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with sizes and settings.")] = None,
    output: Annotated[Path, typer.Option(help="The run's folder.")] = Path("run"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    steps: Annotated[int | None, typer.Option(help="How many steps to train for.", min=1)] = None,
    seed: Annotated[int | None, typer.Option(help="What everything random is drawn from.")] = None,
    device: Device = None,
    dtype: InDtype = Dtype.float32,
) -> None:
    """Train a Transformer to translate, and see which head comes to find which relation."""
    import torch

    from clearhead.cli.train import configured, data_for, show_run, signal_as_exit_code, training_report
    from clearhead.distributed.process_group import is_main_process
    from clearhead.translation import RunDirectory
    from clearhead.translation import train as run_training

    run = RunDirectory(output)
    if resume and (config is not None or steps is not None or seed is not None):
        raise ValueError("--config, --steps and --seed do not go with --resume, which goes on with the run's own")
    settings = run.read()[0] if resume else configured(config, steps, seed)
    place = usable_device(device)
    sentences = data_for(run, data or [], valid or [], settings, resume)
    with signal_as_exit_code(), training_report(settings) as callbacks:
        for note in sentences.notes:
            callbacks.on_message(note)
        run_training(
            sentences,
            settings,
            run,
            device=place,
            dtype=getattr(torch, dtype),
            resume=resume,
            callbacks=callbacks,
        )
    if is_main_process():
        show_run(run, sentences)


@app.command()
def translate(
    text: Annotated[str | None, typer.Argument(help="A sentence to translate.")] = None,
    file: Annotated[
        list[Path] | None, typer.Option("--file", help='Translate line by line; "-" is standard input. Repeatable.')
    ] = None,
    model: Annotated[str, typer.Option("--model", help="The bundled model, en-ja, or a run's folder.")] = "en-ja",
    show: Annotated[bool, typer.Option("--show", help="Show which source words each token follows from.")] = False,
    beams: Annotated[int, typer.Option(help="How many beginnings are followed at once; 1 is greedy.", min=1)] = 4,
    device: Device = None,
    output: Annotated[Path | None, typer.Option(help="A file to write to, instead of standard output.")] = None,
) -> None:
    """Translate a sentence, or files line by line."""
    from clearhead.cli.train import lines_of, show_alignment
    from clearhead.translation import Translator

    if (text is None) == (not file):
        raise ValueError("give a sentence, or --file")
    if show and output is not None:
        raise ValueError("--output does not go with --show, which draws on the terminal")
    lines = [text] if text is not None else [line for path in file or () for line in lines_of(path)]
    translator = Translator.load(model, device=usable_device(device))
    found = []
    with progress_bar("lines", len(lines) if file else 0) as advance:
        for line in translator.stream(lines, beams=beams):
            found.append(line)
            if output is None and not show:  # as it comes: what is done is not lost if it is stopped
                typer.echo(printable(line))
            advance(len(found), len(lines))
    if show:
        show_alignment(translator, lines, found)
    elif output is not None:
        _write("".join(f"{line}\n" for line in found), output)


@app.command()
def record(
    output: Annotated[Path, typer.Option(help="The .safetensors file to write.")],
    text: Annotated[str | None, typer.Argument(help="A text to read; one of our own where none is given.")] = None,
    file: Annotated[Path | None, typer.Option(help="A text file to read.")] = None,
    model: Annotated[
        str, typer.Option("--model", help="As in `stats`; the bundled translator, en-ja, where none is named.")
    ] = "en-ja",
    values: Annotated[
        bool, typer.Option("--values/--no-values", help="Keep what contributions to the output are computed from.")
    ] = True,
    device: Device = None,
    dtype: InDtype = Dtype.float32,
    download: Download = False,
) -> None:
    """Record a model's attention on a text, to look at here or elsewhere: `view`, `stats` and `roles` read the file."""
    from clearhead.cli.view import write_recording

    write_recording(output, text, file, model, values, device, dtype.value, download)


@app.command()
def view(
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT|RECORDING",
            help="A text to read, or a .safetensors file made by `record`; a sentence of our own.",
        ),
    ] = None,
    file: File = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="As in `stats`; the bundled translator, en-ja, where none is named."),
    ] = None,
    roles: Annotated[
        Path | None, typer.Option(help="Labels from a file made by `clearhead roles --output`, induction included.")
    ] = None,
    port: Annotated[int, typer.Option(help="The port to serve on; if it is in use, the next free one.", min=1)] = 5006,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    output: Annotated[
        Path | None, typer.Option(help="Write a report to keep, one HTML file, instead of serving the page.")
    ] = None,
    device: Device = None,
    dtype: InDtype = Dtype.float32,
    download: Download = False,
) -> None:
    """See every head in the browser, from the whole matrix to one cell. Served on this machine only."""
    from clearhead.cli.view import serve, what_to_show, write_report

    shown = what_to_show(text, file, model, device, dtype.value, download)
    if output is None:
        serve(*shown, roles, port, browser)
    else:
        write_report(output, *shown, roles)


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False) -> None:
    """Show versions, devices, and which backend can do what on this machine."""
    from clearhead.cli.doctor import diagnose

    found = diagnose()
    if as_json:
        typer.echo(json_text(dataclasses.asdict(found), indent=2))
        return
    console = console_for_output()
    console.print(Styled("  ").join(Styled(name, "bold") + f" {version}" for name, version in found.versions.items()))
    for device in found.devices:
        console.print(device)
    for name, extra in found.extras.items():
        missing = f"missing {', '.join(extra.missing)}: pip install 'clearhead[{name}]'"
        console.print(Styled(f"extra {name}: {'installed' if extra.installed else missing}"))
    table = Table("problem", "device", "backends, fastest first", "refused, and why", title="What runs where")
    for case in found.cases:
        reasons = "\n".join(f"{backend}: {'; '.join(why)}" for backend, why in case.refusals.items())
        table.add_row(case.name, case.device, ", ".join(case.able), reasons)
    console.print(table)
