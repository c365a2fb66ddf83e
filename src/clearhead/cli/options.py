"""Options that several commands share."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from clearhead._utils.suffixes import check_suffix
from clearhead.explain import BUILT_IN


class Dtype(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


FilesOption = Annotated[
    list[Path] | None,
    typer.Option("--file", help='Text file to run the model on, as one text; "-" is standard input. Repeatable.'),
]
DeviceOption = Annotated[
    str | None, typer.Option(help="Device to run on, such as cpu or cuda (default: a GPU if there is one).")
]
DtypeOption = Annotated[Dtype, typer.Option("--dtype", help="Dtype of the model and its calculations.")]
DownloadOption = Annotated[
    bool, typer.Option("--download", help="Download the model from the Hugging Face Hub if it is not cached.")
]
ImageOption = Annotated[
    Path | None, typer.Option("--image", help="PNG or JPEG file to run a vision model on.", metavar="FILE")
]
AudioOption = Annotated[
    Path | None, typer.Option("--audio", help="WAV file to run a speech model such as Whisper on.", metavar="FILE")
]
EXAMPLE_HELP = f"A built-in example ({', '.join(BUILT_IN)}), or a TOML, Markdown or LaTeX file."
ExampleArgument = Annotated[str, typer.Argument(metavar="NAME|FILE", help=EXAMPLE_HELP)]
DigitsOption = Annotated[
    int | None, typer.Option(help="Digits after the decimal point (default: 3; in JSON: all).", min=0, max=15)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Format = TypeVar("Format", bound=StrEnum)


def format_of(output: Path | None, given: Format | None, default: Format) -> Format:
    """Return the format of an output file: that of --format, or else that of the file's suffix.

    Raises:
        ValueError: if the suffix is that of another format.
    """
    formats = type(default) if given is None else (given,)
    file_format = None if output is None else check_suffix("--output", output, *formats)
    return given or type(default)(file_format or default)


@dataclasses.dataclass(frozen=True)
class AnalysisOptions:
    """Options of the commands that analyze a model's heads over texts, or a recording."""

    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT|RECORDING",
            help='Text to run the model on (default: built-in English passages; "-" reads standard input), or a'
            " .safetensors file from `record`.",
        ),
    ] = None
    file: FilesOption = None
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="Folder or hub id of a Hugging Face model (--image or --audio if it reads pictures or sound), .gguf"
            " file, folder of a training run, en-ja (the bundled translator, the default), timm:NAME with --image, or"
            " package.module:function, a function that returns a torch module and its inputs. The last imports that"
            " module and runs its code.",
        ),
    ] = None
    image: ImageOption = None
    audio: AudioOption = None
    layers: Annotated[str | None, typer.Option(help="Show only these layers, counted from 0, such as 0,3-5.")] = None
    device: DeviceOption = None
    dtype: DtypeOption = Dtype.float32
    download: DownloadOption = False
    as_json: JsonOption = False
    output: Annotated[Path | None, typer.Option(help="Write JSON to this file instead of printing tables.")] = None


def takes_analysis_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the fields of `AnalysisOptions` as parameters, and call it with an instance.

    typer reads the parameters of a command from its signature. The command's own parameters follow the shared ones.
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
    del wrapper.__wrapped__  # pyright: ignore[reportAttributeAccessIssue], typer would read its signature instead
    return wrapper
