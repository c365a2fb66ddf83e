"""Command `explain`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clearhead._utils.consoles import console_for_output
from clearhead.cli.inputs import InputOptions, is_recording, load_source
from clearhead.cli.options import (
    EXAMPLE_HELP,
    DeviceOption,
    DigitsOption,
    DownloadOption,
    Dtype,
    DtypeOption,
    ImageOption,
    format_of,
)
from clearhead.cli.output import check_binary_output, write, write_binary
from clearhead.cli.texts import read_example

if TYPE_CHECKING:
    from clearhead.explain import Trace

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
    xlsx = "xlsx"


def explain(
    example: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|FILE|TEXT",
            help=f'{EXAMPLE_HELP} With --model: a text ("-" reads standard input) or a recording.',
        ),
    ] = None,
    output_format: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="Output format (default: by the suffix of --output, or else text). toml is the example itself, as a"
            " file to edit; xlsx a workbook with formulas.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write to this file instead of standard output.")] = None,
    digits: DigitsOption = None,
    step: Annotated[list[str] | None, typer.Option(help="Show only this step, such as scores. Repeatable.")] = None,
    head: Annotated[
        list[str] | None,
        typer.Option(
            help="Show only the steps of this head, counted from 1. Repeatable. With --model: the head to explain,"
            " counted from 0, such as cross.2.5."
        ),
    ] = None,
    cell: CellOption = None,
    list_examples: Annotated[bool, typer.Option("--list", help="List the built-in examples.")] = False,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="Explain a head of this model on TEXT: any model that `record` takes, such as a folder or hub id of a"
            " Hugging Face model, a .gguf file, the folder of a training run, or en-ja (the bundled translator).",
        ),
    ] = None,
    image: ImageOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = Dtype.float32,
    download: DownloadOption = False,
) -> None:
    """Write out an attention calculation step by step, with all its numbers.

    The calculation is a worked example, or with --model one head of a model on a text.
    """
    if list_examples:
        from clearhead.cli.tables import print_examples

        print_examples(console_for_output())
        return
    output_format = format_of(output, output_format, Format.text)
    if output_format is Format.xlsx:
        check_binary_output(output)  # first, because a model may take minutes
    if model is not None or is_recording(example):
        options = InputOptions(image, device, dtype.value, download)
        trace, title = _trace_of_head(example, model, head or [], output_format, options)
        heads = []
    else:
        given = {"--image": image is not None, "--device": device is not None, "--download": download}
        for option in (option for option, is_given in given.items() if is_given):
            raise ValueError(f"{option} is given without --model; expected a model to run")
        if example is None:
            raise ValueError(
                "NAME is missing; expected a built-in example (--list shows them), a file, or a text with --model"
            )
        worked = read_example(example)
        if output_format is Format.toml:
            if step or head or cell or digits is not None:
                raise ValueError(
                    "--step, --head, --cell and --digits cannot be combined with --format toml, which writes the whole"
                    " example"
                )
            write(worked.to_toml(), output)
            return
        trace, title, heads = worked.trace(), worked.title, [_head_of_example(name) for name in head or ()]
    if output_format is Format.xlsx and (cell or step or heads):
        raise ValueError(
            "--step, --head and --cell cannot be combined with --format xlsx, whose formulas read all other steps"
        )
    if cell and step:
        raise ValueError("--step and --cell are both given; expected one of them, because a cell names its step")
    trace = trace.select_cells(cell, heads) if cell else trace.select(step or (), heads)
    from clearhead.explain.render import DEFAULT_DIGITS, print_trace, render, render_workbook

    if output_format is Format.xlsx:
        write_binary(render_workbook(trace, title=title, digits=digits), output)
    elif output_format is Format.text and output is None:
        print_trace(console_for_output(), trace, title, DEFAULT_DIGITS if digits is None else digits)
    else:
        write(render(trace, output_format.value, title=title, digits=digits), output)


def _head_of_example(name: str) -> int:
    """Return the index, from 0, of a head of an example, which is counted from 1."""
    if not (name.isascii() and name.isdecimal() and len(name) <= 9):
        raise ValueError(
            f"--head is {name!r}; expected a whole number, counted from 1; a head of a model needs --model"
        )
    return int(name) - 1


def _trace_of_head(
    text: str | None, model: str | None, heads: list[str], output_format: Format, options: InputOptions
) -> tuple[Trace, str]:
    """Run a model on a text, or read a recording, and return the calculation of one head and its title."""
    if output_format is Format.toml:
        raise ValueError(
            "--format is toml, which writes a worked example; expected another format for a head of a model"
        )
    if len(heads) != 1:
        count = "missing" if not heads else f"given {len(heads)} times"
        raise ValueError(f"--head is {count}; expected one head of the model, counted from 0, such as cross.2.5")
    if model is not None and is_recording(model):
        raise ValueError(f"--model is {model}, which is a recording; pass it in place of TEXT")
    if text is None and not (model is not None and options.records(model)):
        raise ValueError(f"TEXT is missing; expected a text to run {model} on")
    from clearhead.explain import trace_head
    from clearhead.recording.recording import Recording

    source, texts = load_source(text, None, model, options)
    recording = source if isinstance(source, Recording) else source.record(texts[0], values=True)
    trace = trace_head(recording, heads[0])
    return trace, f"Head {trace.head_name} of {recording.model}"
