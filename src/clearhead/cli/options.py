"""Options that several commands share."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer


class Dtype(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


FilesOption = Annotated[list[Path] | None, typer.Option("--file", help="A text file to read, as one text. Repeatable.")]
DeviceOption = Annotated[str | None, typer.Option(help="Where to run, such as cpu or cuda; a GPU if there is one.")]
DtypeOption = Annotated[Dtype, typer.Option("--dtype", help="What to compute in.")]
DownloadOption = Annotated[
    bool, typer.Option("--download", help="Fetch the model from the Hugging Face hub if need be.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


@dataclasses.dataclass(frozen=True)
class AnalysisOptions:
    """Options of the commands that analyze a model's heads over texts, or a recording."""

    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT|RECORDING",
            help="A text to read, ordinary English prose where none is given; or a .safetensors file made by `record`.",
        ),
    ] = None
    file: FilesOption = None
    model: Annotated[
        str | None,
        typer.Option("--model", help="A folder of Hugging Face files or of a run, a .gguf file, a hub id, or en-ja."),
    ] = None
    layers: Annotated[str | None, typer.Option(help="Only these layers, from 0, such as 0,3-5.")] = None
    device: DeviceOption = None
    dtype: DtypeOption = Dtype.float32
    download: DownloadOption = False
    as_json: JsonOption = False
    output: Annotated[Path | None, typer.Option(help="A file to write JSON to, instead of standard output.")] = None


def takes_analysis_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the fields of `AnalysisOptions` as parameters; it is called with an instance of them.

    typer reads the parameters of a command from its signature. Parameters that the command adds come after the shared
    ones.
    """
    hints = get_type_hints(command, include_extras=True)
    shared_hints = get_type_hints(AnalysisOptions, include_extras=True)
    shared = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=shared_hints[field.name]
        )
        for field in dataclasses.fields(AnalysisOptions)
    ]
    _, *added = inspect.signature(command).parameters.values()
    added = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[parameter.name]) for parameter in added
    ]

    @functools.wraps(command)
    def wrapper(**arguments: Any) -> None:
        options = AnalysisOptions(**{parameter.name: arguments.pop(parameter.name) for parameter in shared})
        command(options, **arguments)

    parameters = [*shared, *added]
    wrapper.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del wrapper.__wrapped__  # pyright: ignore[reportAttributeAccessIssue], or its signature would be read instead
    return wrapper
