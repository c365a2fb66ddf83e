"""What the commands that run a model share: its texts, loading it, choosing layers, progress."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from clearhead._utils.bounded_reads import read_text
from clearhead._utils.files import resolve_target

if TYPE_CHECKING:
    import torch

    from clearhead.distributed.process_group import ProcessGroup
    from clearhead.models import HuggingFaceModel
    from clearhead.recording.recording import Recording
    from clearhead.translation.translator import Translator


SUFFIX = ".safetensors"  # by which a recording is told from a text


def texts_to_read(text: str | None, files: list[Path] | None) -> list[str]:
    """What to read: what is given, or a passage of our own."""
    if text is not None and _is_file(text):
        raise ValueError(f"TEXT is {text!r}, which is a file; expected --file {text}")
    given = [] if text is None else [("TEXT", text)]
    given += [(str(path), read_text(path)) for path in files or ()]
    for name, own in given:
        if not own.strip():
            raise ValueError(f"{name} is empty; expected a text to read")
    if given:
        return [own for _, own in given]
    from clearhead.models import PASSAGE

    return list(PASSAGE)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or with a letter that no name has
        return False


def load_model(model: str, device: str | None, dtype: str, download: bool) -> HuggingFaceModel | Translator:
    """The model on its device."""
    import torch

    from clearhead.models import load

    return load(model, device=usable_device(device), dtype=getattr(torch, dtype), download=download)


def usable_device(device: str | None) -> torch.device:
    """The device of that name; a GPU if there is one and nothing else is said."""
    import torch

    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(where)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device is {where!r}, which cannot be used here: {str(error).splitlines()[0]}") from None
    return place


def is_recording(text: str) -> bool:
    """Whether what stands in place of a text is the name of a recording."""
    return text.endswith(SUFFIX)


def load_recording(path: str, files: list[Path] | None, model: str | None, device: str | None) -> Recording:
    """A recording, which has its own text and its own model."""
    from clearhead.recording.recording import Recording

    if files or model is not None:
        raise ValueError(f"{path} is a recording, which --file and --model do not go with")
    return Recording.load(path, device=usable_device(device))


def load_what_is_read(
    text: str | None, files: list[Path] | None, model: str | None, device: str | None, dtype: str, download: bool
) -> tuple[HuggingFaceModel | Translator | Recording, list[str]]:
    """A model and the texts it is to read; or a recording, and none."""
    if text is not None and is_recording(text):
        return load_recording(text, files, model, device), []
    if model is None:
        raise ValueError(f"--model is missing; expected a model to run, or a recording ({SUFFIX}) in place of TEXT")
    texts = texts_to_read(text, files)
    return load_model(model, device, dtype, download), texts


def name_of(model: HuggingFaceModel | Translator | Recording) -> str:
    from clearhead.recording.recording import Recording

    return model.model if isinstance(model, Recording) else model.name


def chosen_layers(layers: str | None, model: HuggingFaceModel | Translator | Recording) -> Container[int]:
    """The numbers that "0,3-5" means."""
    from clearhead.models import layer_count

    if layers is None:
        return range(sys.maxsize)
    count = layer_count(model)
    chosen: set[int] = set()
    shown = repr(layers if len(layers) <= 40 else f"{layers[:37]}...")
    for part in layers.split(","):
        first, _, last = part.strip().partition("-")
        last = last or first
        if not (first.isdecimal() and last.isdecimal()):
            raise ValueError(f"--layers is {shown}; expected numbers and ranges such as 0,3-5")
        if max(len(first), len(last)) > 9 or not int(first) <= int(last) < count:  # before a range of them is made
            raise ValueError(f"--layers is {shown}, but the layers are 0 to {count - 1}")
        chosen |= set(range(int(first), int(last) + 1))
    return chosen


@contextmanager
def progress_bar(what: str, count: int) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on a terminal's stderr; a function that moves it."""
    from rich.progress import Progress

    from clearhead.distributed.process_group import is_main_process

    silent = not (count and sys.stderr.isatty() and is_main_process())
    with Progress(console=Console(stderr=True), transient=True, disable=silent) as bar:
        task = bar.add_task(what, total=count)
        yield lambda done, of: bar.update(task, completed=done, total=of)


@contextmanager
def joined(device: str | None) -> Iterator[ProcessGroup]:
    """This process alone, or with the others that torchrun has started."""
    from clearhead.distributed.process_group import init_process_group

    with init_process_group(usable_device(device)) as process_group:
        yield process_group


@contextmanager
def kept_beside(output: Path | None) -> Iterator[Path | None]:
    """A folder for what is done so far, beside the file that is to be written; taken away once it is."""
    place = None if output is None else resolve_target(output)
    if output is None or (place is not None and place.exists() and not place.is_file()):  # a terminal, a pipe
        yield None
        return
    keep = output.with_name(f".{output.name}.parts")  # names the file, not what a link leads to
    yield keep
    from clearhead.analysis.resumable import discard_results
    from clearhead.distributed.process_group import is_main_process

    if is_main_process():
        discard_results(keep)
