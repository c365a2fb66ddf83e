"""What `clearhead record` writes; what `clearhead view` shows or writes, and what it says while it serves."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from clearhead._utils.bounded_reads import read_text
from clearhead._utils.files import resolve_target
from clearhead._utils.text import printable
from clearhead.cli.options import SUFFIX, is_recording, load_model, load_recording, progress_bar, texts_to_read

if TYPE_CHECKING:
    from clearhead.analysis.roles import Roles
    from clearhead.models import HuggingFaceModel
    from clearhead.recording.recording import Recording
    from clearhead.translation.translator import Translator


def what_to_show(
    text: str | None, files: list[Path] | None, model: str | None, device: str | None, dtype: str, download: bool
) -> tuple[Callable[[], Recording | HuggingFaceModel | Translator], list[str] | None]:
    """What loads a recording; or a model and its texts, of which the first is shown first."""
    if text is not None and is_recording(text):
        return lambda: load_recording(text, files, model, device), None
    texts = texts_to_read(text, files) if text is not None or files else None
    return lambda: load_model("en-ja" if model is None else model, device, dtype, download), texts


def write_recording(
    output: Path,
    text: str | None,
    file: Path | None,
    model: str,
    values: bool,
    device: str | None,
    dtype: str,
    download: bool,
) -> None:
    """Run a model on one text and keep its attention; says how large the file is."""
    if output.suffix != SUFFIX:
        raise ValueError(f"--output is {output}; expected a name that ends in {SUFFIX}")
    resolve_target(output)
    if text is not None and file is not None:
        raise ValueError("TEXT and --file are both given; a recording is of one text")
    given = texts_to_read(text, [file] if file else None) if text is not None or file else None
    with Console(stderr=True).status("loading and running the model …"):
        from clearhead.models import default_text, record

        loaded = load_model(model, device, dtype, download)
        recording = record(loaded, given[0] if given else default_text(loaded), values=values)
        recording.save(output)
    size = output.stat().st_size / 2**20
    _print(f"wrote {output}: {recording!r}, {size:.1f} MiB\nclearhead view {shlex.quote(str(output))}")


def write_report(
    output: Path,
    shown: Callable[[], Recording | HuggingFaceModel | Translator],
    texts: list[str] | None,
    roles: Path | None,
) -> None:
    """One page of one text; says how large it is, and what was left out."""
    if output.suffix == SUFFIX:
        raise ValueError(f"--output is {output}; expected the name of an HTML file, such as report.html")
    resolve_target(output)
    if texts is not None and len(texts) > 1:
        raise ValueError(f"{len(texts)} texts are given; a report is of one")
    found = None if roles is None else _read_roles(roles)
    with Console(stderr=True).status("loading and running the model …"):
        from clearhead.models import default_text, record
        from clearhead.recording.recording import Recording
        from clearhead.viewer.report.export import report

        loaded = shown()
        if isinstance(loaded, Recording):
            recording = loaded
        else:
            recording = record(loaded, texts[0] if texts else default_text(loaded))
    with progress_bar("layers", sum(len(stack.layers) for stack in recording.stacks.values())) as advance:
        written = report(recording, output, roles=found, progress=advance)
    _print(f"wrote {output}: {recording!r}, {output.stat().st_size / 1e6:.1f} MB")
    for note in written.notes:
        _print(note)


def serve(
    shown: Callable[[], Recording | HuggingFaceModel | Translator],
    texts: list[str] | None,
    roles: Path | None,
    port: int,
    browser: bool,
) -> None:
    """Until Ctrl-C. Says where the page is, and how to reach it from another machine."""
    found = None if roles is None else _read_roles(roles)
    status, viewer = 0, None
    signal.signal(signal.SIGTERM, _stop)
    try:
        with Console(stderr=True).status("loading and running the model …"):
            from clearhead.viewer.server.serve import view

            viewer = view(shown, texts, roles=found, port=port, browser=False, wait=False)
        if viewer.port != port:
            print(f"Port {port} is in use; this is the next free one.")
        viewer.print_link()
        if browser:
            viewer.open()
        viewer.wait()
    except KeyboardInterrupt:  # before there was anything to serve
        status = 128 + signal.SIGINT
    except _Stopped:
        status = 128 + signal.SIGTERM
    if viewer is not None:
        viewer.close()
    sys.stdout.flush()
    os._exit(status)  # a model that is still running would be waited for, and nothing of it is kept


class _Stopped(BaseException):
    """The process was asked to end by SIGTERM."""


def _stop(*_: object) -> None:
    raise _Stopped


def _read_roles(path: Path) -> Roles:
    from clearhead.analysis.roles import Roles

    text = read_text(path)
    try:
        return Roles.from_json(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _print(text: str) -> None:
    print(printable(text))
