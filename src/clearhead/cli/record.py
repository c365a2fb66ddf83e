"""Command `record`, which writes the attention of a model to a file."""

from __future__ import annotations

import os
import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clearhead._utils.files import resolve_target
from clearhead._utils.text import printable
from clearhead.cli.inputs import BUNDLED, RECORDING_SUFFIX, InputOptions, load_model, record_input, texts_to_read
from clearhead.cli.options import AudioOption, DeviceOption, DownloadOption, Dtype, ImageOption
from clearhead.cli.output import stage_progress

if TYPE_CHECKING:
    from clearhead.recording.recording import Recording

DEFAULT_MAX_TOKENS = 64
# vLLM logs to standard output, and Hugging Face connects to the hub even for models in the local cache
VLLM_ENVIRONMENT = {"VLLM_LOGGING_STREAM": "ext://sys.stderr", "VLLM_LOGGING_LEVEL": "ERROR"}
OFFLINE = {"HF_HUB_OFFLINE": "1"}


class Engine(StrEnum):
    transformers = "transformers"
    vllm = "vllm"


def record(
    output: Annotated[Path, typer.Option(help="The .safetensors file to write.")],
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT",
            help='Text to run the model on (default: a built-in sentence; "-" reads standard input).',
        ),
    ] = None,
    file: Annotated[Path | None, typer.Option(help='Text file to run the model on; "-" is standard input.')] = None,
    model: Annotated[
        str, typer.Option("--model", help="Model, as in `stats`; en-ja is the bundled translator.")
    ] = BUNDLED,
    engine: Annotated[
        Engine,
        typer.Option(help="transformers runs the model on the text. vllm also generates a continuation of the text."),
    ] = Engine.transformers,
    max_tokens: Annotated[
        int | None,
        typer.Option(help=f"Tokens that vLLM generates at most (default: {DEFAULT_MAX_TOKENS}).", min=1),
    ] = None,
    image: ImageOption = None,
    audio: AudioOption = None,
    values: Annotated[
        bool,
        typer.Option("--values/--no-values", help="Store the values too, which contributions to the output require."),
    ] = True,
    device: DeviceOption = None,
    dtype: Annotated[
        Dtype | None,
        typer.Option(help="Dtype of the model and its calculations (default: float32; with vLLM, that of its files)."),
    ] = None,
    download: DownloadOption = False,
) -> None:
    """Record a model's attention on a text or another input, and write it to a file for `view`, `stats` and `roles`."""
    if output.suffix != RECORDING_SUFFIX:
        raise ValueError(f"--output is {output}; expected a name that ends in {RECORDING_SUFFIX}")
    resolve_target(output)
    if text is not None and file is not None:
        raise ValueError("TEXT and --file are both given; expected one text to record")
    if max_tokens is not None and engine is not Engine.vllm:
        raise ValueError("--max-tokens is given without --engine vllm; the engine transformers generates no tokens")
    files = [file] if file else None
    with stage_progress() as report:
        options = InputOptions(image, device, (dtype or Dtype.float32).value, download, audio)
        if engine is Engine.vllm:
            prompt = _prompt(text, files, model, options)
            report("running vLLM", 0, 0)
            recording = _generate(model, prompt, max_tokens, "auto" if dtype is None else dtype.value, values, download)
        elif options.records(model):
            recording = record_input(model, options, text=text, files=files, values=values)
        else:
            texts = texts_to_read(text, files) if text is not None or file else None
            loaded = load_model(model, device, options.dtype, download, head=None, progress=report)
            report("running the model", 0, 0)
            recording = loaded.record(texts[0] if texts else loaded.default_text, values=values)
        report("writing the recording", 0, 0)
        recording.save(output)
    size = output.stat().st_size / 2**20
    print(printable(f"wrote {output}: {recording!r}, {size:.1f} MiB\nclearhead view {shlex.quote(str(output))}"))


def _prompt(text: str | None, files: list[Path] | None, model: str, options: InputOptions) -> str:
    """Return the text that vLLM continues. Raise for options that it does not support."""
    for name in options.media:
        raise ValueError(f"--{name} is given with --engine vllm; expected a text only")
    if options.device is not None:
        raise ValueError(f"--device is {options.device!r}, but vLLM chooses the device; omit it with --engine vllm")
    if model == BUNDLED:
        raise ValueError(f"--model is {model}; expected a folder or hub id of a model that vLLM supports")
    if text is None and files is None:
        raise ValueError("TEXT is missing; expected a text that vLLM continues, or --file")
    return texts_to_read(text, files)[0]


def _generate(model: str, prompt: str, max_tokens: int | None, dtype: str, values: bool, download: bool) -> Recording:
    for name, value in (VLLM_ENVIRONMENT if download else VLLM_ENVIRONMENT | OFFLINE).items():
        os.environ.setdefault(name, value)  # before vLLM is imported; its processes inherit it
    from clearhead.serving import engine

    options = {"max_tokens": max_tokens or DEFAULT_MAX_TOKENS, "dtype": dtype, "values": values}
    try:
        return engine.record_generation(model, prompt, **options)
    except FileNotFoundError:
        if download or Path(model).exists():
            raise
        raise ValueError(
            f"{model}: there is no such folder, and the local Hugging Face cache has no model of that name;"
            " pass --download to download it from the hub"
        ) from None
