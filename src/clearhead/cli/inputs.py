"""Inputs of the commands that run a model: texts, a model or a recording, a device, and a choice of layers."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clearhead._utils.bounded_reads import read_text, stdin_text
from clearhead._utils.parsing import parse_indices, shortened
from clearhead._utils.progress import StageProgress
from clearhead.cli.errors import print_stderr
from clearhead.cli.output import stage_progress

if TYPE_CHECKING:
    import torch

    from clearhead.distributed.process_group import ProcessGroup
    from clearhead.recording.protocol import RecordableModel
    from clearhead.recording.recording import Recording

RECORDING_SUFFIX = ".safetensors"  # copied from clearhead.models, which imports torch
TIMM_PREFIX = "timm:"
BUNDLED = "en-ja"
GGUF_SUFFIX = ".gguf"
STDIN = "-"  # in place of a text or of the name of a text file
HUB_ID = re.compile(r"[\w-]+/[\w.-]*[\d-][\w.-]*")  # owner/name with a digit or a hyphen, unlike "and/or"
FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")  # package.module:function


def texts_to_read(text: str | None, files: list[Path] | None) -> list[str]:
    """Return TEXT and the contents of the files (default: the built-in example passages)."""
    named = [] if text is None else [_read(Path(STDIN)) if text == STDIN else ("TEXT", _checked_text(text))]
    named += [_read(path) for path in files or ()]
    for name, content in named:
        if not content.strip():
            raise ValueError(f"{name} is empty; expected a text")
    if named:
        return [content for _, content in named]
    from clearhead.recording.example_texts import EXAMPLE_PASSAGES

    return list(EXAMPLE_PASSAGES)


def _read(path: Path) -> tuple[str, str]:
    """Return the name and the contents of a text file, or of standard input."""
    if str(path) != STDIN:
        return str(path), read_text(path)
    if os.environ.get("WORLD_SIZE", "1") != "1":  # torchrun: each process would read a part
        raise ValueError("standard input cannot be read by several processes; expected TEXT or --file FILE")
    return "standard input", stdin_text()


def _checked_text(text: str) -> str:
    """Return a text. Raise if it is the name of a model or of a file, and warn if it looks like a hub id."""
    try:
        is_file, is_model = Path(text).is_file(), (Path(text) / "config.json").is_file()
    except (OSError, ValueError):  # too long for a file name, or with a null byte
        return text
    if is_model or text == BUNDLED or text.endswith(GGUF_SUFFIX):
        raise ValueError(f"TEXT is {text!r}, which is a model; expected --model {text}")
    if is_file:
        raise ValueError(f"TEXT is {text!r}, which is a file; expected --file {text}")
    if HUB_ID.fullmatch(text):
        print_stderr(f"reading {text!r} as a text; if it is a model, write --model {text}")
    return text


def load_model(
    model: str,
    device: str | None,
    dtype: str,
    download: bool,
    *,
    head: bool | None = False,
    progress: StageProgress | None = None,
) -> RecordableModel:
    """Load a model onto a device (default: a GPU if there is one)."""
    import torch

    from clearhead.models import load

    placed = {"device": usable_device(device), "dtype": getattr(torch, dtype)}
    return load(model, **placed, download=download, head=head, progress=progress)


def has_input(model: str) -> bool:
    """Return whether a name is that of a model without a text: `timm:NAME` or `package.module:function`.

    Raises:
        ValueError: if the name has a colon, but neither form, and is not a file.
    """
    if ":" not in model or Path(model).exists() or is_recording(model):
        return False
    if not model.startswith(TIMM_PREFIX) and FUNCTION.fullmatch(model) is None:
        raise ValueError(
            f"--model is {model!r}; expected a name or path, package.module:function, or {TIMM_PREFIX}NAME"
        )
    return True


@dataclass(frozen=True)
class InputOptions:
    """Options of a model that is recorded on an input that is not a text, or on more than a text."""

    image: Path | None
    device: str | None
    dtype: str
    download: bool
    audio: Path | None = None

    @property
    def media(self) -> dict[str, Path]:
        """Files by the names of the options without "--"."""
        return {name: path for name, path in (("image", self.image), ("audio", self.audio)) if path is not None}

    def records(self, model: str) -> bool:
        """Return whether `record_input` records the model: with a picture or a sound, or if `has_input` is true."""
        return has_input(model) or bool(self.media)


def record_input(
    model: str, options: InputOptions, *, text: str | None, files: list[Path] | None, values: bool = True
) -> Recording:
    """Record a model for which `InputOptions.records` is true."""
    if len(options.media) > 1:
        raise ValueError("--image and --audio are both given; expected one of them")
    if not has_input(model):
        return _record_media(model, options, text, files, values)
    if text is not None or files:
        raise ValueError(f"TEXT or --file is given, but --model is {model}, which runs on another input")
    import torch

    if model.startswith(TIMM_PREFIX):
        if options.image is None:
            raise ValueError(f"--model is {model}, which runs on an image; expected --image FILE")
        from clearhead.watching.timm_models import record_timm

        device, dtype = usable_device(options.device), getattr(torch, options.dtype)
        return record_timm(model, options.image, device=device, dtype=dtype, download=options.download, values=values)
    given = {
        **{f"--{name}": True for name in options.media},
        "--download": options.download,
        "--dtype": options.dtype != "float32",
    }
    for option, is_given in given.items():
        if is_given:
            raise ValueError(f"{option} is given, but {model} is a function that returns its model and inputs")
    from clearhead.watching.functions import record_function

    device = None if options.device is None else usable_device(options.device)
    return record_function(model, device=device, values=values)


def _record_media(
    model: str, options: InputOptions, text: str | None, files: list[Path] | None, values: bool
) -> Recording:
    """Record a Hugging Face model on a picture or a sound, and on a text if one is given."""
    check_no_media(options, model if is_recording(model) or model == BUNDLED else None)
    texts = texts_to_read(text, files) if text is not None or files else [None]
    if len(texts) > 1:
        raise ValueError(f"{len(texts)} texts are given; expected at most one with --{next(iter(options.media))}")
    import torch

    from clearhead.models import record

    return record(
        model,
        texts[0],
        image=options.image,
        audio=options.audio,
        values=values,
        device=usable_device(options.device),
        dtype=getattr(torch, options.dtype),
        download=options.download,
    )


def check_no_media(options: InputOptions, source: str | None) -> None:
    """Raise if --image or --audio is given with a recording or a model that reads only text. None: another model."""
    if source is not None and options.media:
        name = next(iter(options.media))
        raise ValueError(f"--{name} is given with {source}; expected --model with a model that reads it")


def usable_device(name: str | None) -> torch.device:
    """Return the named device (default: a GPU if there is one). Raise if it cannot be used."""
    import torch

    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).item()  # a meta tensor has no data
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device is {name!r}, which cannot be used here: {str(error).splitlines()[0]}") from None
    return device


def is_recording(text: str | None) -> bool:
    """Return whether TEXT is the path of a recording."""
    return text is not None and text.endswith(RECORDING_SUFFIX)


def check_recording_alone(path: str, files: list[Path] | None, model: str | None) -> None:
    """Raise if --file or --model is given with a recording."""
    if files or model is not None:
        raise ValueError(f"{path} is a recording, which cannot be combined with --file or --model")


def load_source(
    text: str | None, files: list[Path] | None, model: str | None, options: InputOptions, *, head: bool = False
) -> tuple[RecordableModel | Recording, list[str]]:
    """Return a model (default: the bundled one) and the texts to run it on, or a recording and no texts.

    `head` is that of `models.load`.
    """
    if model is not None and options.records(model):
        return record_input(model, options, text=text, files=files), []
    check_no_media(options, text if is_recording(text) else BUNDLED if model is None else None)
    if text is not None and is_recording(text):
        from clearhead.recording.recording import Recording

        check_recording_alone(text, files, model)
        return Recording.load(text, device=usable_device(options.device)), []
    texts = texts_to_read(text, files)
    name = BUNDLED if model is None else model
    with stage_progress() as report:
        return load_model(name, options.device, options.dtype, options.download, head=head, progress=report), texts


def source_name(source: RecordableModel | Recording) -> str:
    """Return the name of the model, or of the recorded model."""
    from clearhead.recording.recording import Recording

    return source.model if isinstance(source, Recording) else source.name


def chosen_layers(layers: str | None, source: RecordableModel | Recording) -> Collection[int]:
    """Return the layers of a choice such as "0,3-5" (default: all layers)."""
    if layers is None:
        return range(sys.maxsize)
    count = source.layer_count
    return parse_indices("--layers", layers, count, f", but the layers are 0 to {count - 1}")


def parse_spans(
    spans: list[str] | None,
) -> dict[str, tuple[int, int]] | dict[str, dict[str, tuple[int, int]]] | None:
    """Return spans of tokens by name, from options such as "system=0:40", or by stack; None without options."""
    from clearhead.analysis.summary import COLUMNS

    by_stack: dict[str, dict[str, tuple[int, int]]] = {}  # "" for spans without a stack
    for given in spans or ():
        printed = shortened(given)
        name, equals, bounds = given.rpartition("=")
        stack, _, name = name.rpartition(":")
        chosen = by_stack.setdefault(stack, {})
        start, colon, end = bounds.partition(":")
        if not (name.strip() and equals and colon and _is_position(start) and _is_position(end)):
            raise ValueError(f"--spans is {printed}; expected name=start:end with token indices, such as system=0:40")
        if int(start) >= int(end):
            raise ValueError(f"--spans is {printed}; expected start < end, because an empty span has no attention")
        if name in chosen or name in COLUMNS:
            taken = "is given twice" if name in chosen else "is another column of the table"
            raise ValueError(f"--spans is {printed}, whose name {taken}; expected distinct names")
        chosen[name] = (int(start), int(end))
        if len(by_stack) > 1 and "" in by_stack:
            raise ValueError(f"--spans is {printed}; expected a stack in all spans or in none, such as decoder:a=0:3")
    return by_stack.get("", by_stack) or None


def _is_position(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 9


@contextmanager
def process_group_for(device: str | None) -> Iterator[ProcessGroup]:
    """Yield the process group that torchrun started, or a group of this process alone."""
    from clearhead.distributed.process_group import init_process_group

    with init_process_group(usable_device(device)) as process_group:
        yield process_group
