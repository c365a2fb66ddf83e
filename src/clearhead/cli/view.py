"""Command `view`: serve the viewer, or write a report."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearhead._utils.bounded_reads import read_text
from clearhead._utils.files import resolve_target
from clearhead._utils.suffixes import check_suffix
from clearhead._utils.text import printable
from clearhead.cli.inputs import (
    BUNDLED,
    InputOptions,
    check_no_media,
    check_recording_alone,
    has_input,
    is_recording,
    record_input,
    texts_to_read,
    usable_device,
)
from clearhead.cli.options import (
    AudioOption,
    DeviceOption,
    DownloadOption,
    Dtype,
    DtypeOption,
    FilesOption,
    ImageOption,
)
from clearhead.cli.output import progress_bar, stage_progress

if TYPE_CHECKING:
    from clearhead.analysis.roles import Roles
    from clearhead.recording.recording import Recording

MAX_COMMAND_LETTERS = 2_000  # shown in a report; longer commands contain a long text, which the report shows too
WORKER_GRACE_S = 0.5  # an idle worker thread ends within this time


def view(
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT|RECORDING",
            help='Text to run the model on (default: a built-in sentence; "-" reads standard input), or a .safetensors'
            " file from `record`.",
        ),
    ] = None,
    file: FilesOption = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Model, as in `stats` (default: en-ja, the bundled translator)."),
    ] = None,
    image: ImageOption = None,
    audio: AudioOption = None,
    roles: Annotated[
        Path | None,
        typer.Option(help="File from `clearhead roles --output` with the head labels to show, including induction."),
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option(help="Recording (.safetensors) whose heads are drawn next to the shown ones, with differences."),
    ] = None,
    port: Annotated[
        int, typer.Option(help="Port to serve on. If it is in use, the next free port is used.", min=1)
    ] = 5006,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    output: Annotated[
        Path | None, typer.Option(help="Write a report, one self-contained HTML file, instead of serving the page.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the report (default: the name of the model).")] = None,
    note: Annotated[str | None, typer.Option(help="Note to the readers of the report.")] = None,
    device: DeviceOption = None,
    dtype: DtypeOption = Dtype.float32,
    download: DownloadOption = False,
) -> None:
    """Show every head in the browser, from the whole matrix to one cell.

    The page is served on this machine only.
    """
    _share_cores()
    source, texts = _source(text, file, model)
    given = InputOptions(image, device, dtype.value, download and not is_recording(text), audio)
    check_no_media(given, source if is_recording(text) or model is None else None)
    options = LoadOptions(given, is_recording(text))
    if output is None and (title is not None or note is not None):
        raise ValueError("--title or --note is given without --output; expected the name of a report")
    if output is not None and compare is not None:
        raise ValueError("--compare is given with --output; expected one of them, because a report has one recording")
    if output is None:
        _serve(source, texts, options, roles, compare, port, browser)
    else:
        command = _shared_command(source, output, roles, image, audio, *(file or ()))
        _write_report(output, source, texts, options, roles, {"title": title, "note": note, "command": command})


@dataclass(frozen=True)
class LoadOptions:
    """Command-line options for loading a model or a recording."""

    given: InputOptions
    is_recording: bool

    def load(self, source: str, texts: list[str] | None) -> tuple[str | Recording, list[str] | None, dict[str, Any]]:
        """Return what to pass to `view` and `load_source`: the source, its texts, and keyword arguments.

        A model on an input that is not a text is recorded at once.
        """
        if self.given.records(source):
            if texts is not None and len(texts) > 1:
                raise ValueError(f"{len(texts)} texts are given; expected at most one with --image or --audio")
            text = None if texts is None else texts[0]
            return record_input(source, self.given, text=text, files=None), None, {}
        return source, texts, self.arguments()

    def arguments(self) -> dict[str, Any]:
        """Return keyword arguments for `view` and `load_source`. Imports torch and checks the device."""
        import torch

        device = usable_device(self.given.device)
        if self.is_recording:
            return {"device": device}
        return {"device": device, "dtype": getattr(torch, self.given.dtype), "download": self.given.download}


def _share_cores() -> None:
    """Make threads of torch sleep while they wait for each other, instead of spinning. OpenMP reads this once.

    Spinning threads keep the browser from its core: on 2 busy cores everything takes up to 4 times as long.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _source(text: str | None, files: list[Path] | None, model: str | None) -> tuple[str, list[str] | None]:
    """Return the path of a recording and None, or the name of a model and its texts (None: the default text)."""
    if text is not None and is_recording(text):
        check_recording_alone(text, files, model)
        return text, None
    if model is not None and is_recording(model):
        raise ValueError(f"--model is {model}, which is a recording; pass it in place of TEXT")
    if model is not None and has_input(model) and (text is not None or files):
        raise ValueError(f"TEXT or --file is given, but --model is {model}, which runs on another input")
    texts = texts_to_read(text, files) if text is not None or files else None
    return BUNDLED if model is None else model, texts


def _shared_command(source: str, *files: Path | None) -> str:
    """Return the command line as a report shows it: files by their names, because their folders are private."""
    paths = {path for path in (Path(source) if os.path.exists(source) else None, *files) if path is not None}

    def shown(argument: str) -> str:
        option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
        return f"{option}{equals}{Path(value).absolute().name}" if Path(value) in paths else argument

    return shlex.join(["clearhead", *map(shown, sys.argv[1:])])[:MAX_COMMAND_LETTERS]


def _write_report(
    output: Path,
    source: str,
    texts: list[str] | None,
    options: LoadOptions,
    roles: Path | None,
    details: dict[str, str | None],
) -> None:
    """Write a report on one text, and print its size and its notes."""
    check_suffix("--output", output, "html")
    resolve_target(output)
    if texts is not None and len(texts) > 1:
        raise ValueError(f"{len(texts)} texts are given; expected one for a report")
    labels = None if roles is None else _read_roles(roles)
    with stage_progress() as report_stage:
        from clearhead.models import load_source
        from clearhead.recording.recording import Recording
        from clearhead.viewer.report.export import report

        named, texts, arguments = options.load(source, texts)
        loaded = load_source(named, **arguments, head=None, progress=report_stage)
        if isinstance(loaded, Recording):
            recording = loaded
        else:
            report_stage("running the model", 0, 0)
            recording = loaded.record(texts[0] if texts else loaded.default_text, values=True)
    with progress_bar("layers", sum(len(stack.layers) for stack in recording.stacks.values())) as advance:
        written = report(recording, output, roles=labels, progress=advance, **details)
    _print(f"wrote {output}: {recording!r}, {output.stat().st_size / 1e6:.1f} MB")
    for note in written.notes:
        _print(note)


def _serve(
    source: str,
    texts: list[str] | None,
    options: LoadOptions,
    roles: Path | None,
    compare: Path | None,
    port: int,
    browser: bool,
) -> None:
    """Serve until Ctrl-C. Prints the link and how to open it from another machine."""
    labels = None if roles is None else _read_roles(roles)
    status, viewer = 0, None
    signal.signal(signal.SIGTERM, _stop)
    try:
        with stage_progress() as report_stage:
            from clearhead.viewer.server.serve import view as start_viewer

            named, texts, arguments = options.load(source, texts)
            arguments |= {"port": port, "browser": False, "wait": False, "progress": report_stage}
            viewer = start_viewer(named, texts, roles=labels, compare=compare, **arguments)
        if viewer.port != port:
            print(f"Port {port} is in use; using {viewer.port}, the next free port.")
        viewer.show(browser=browser)
        viewer.wait()
    except KeyboardInterrupt:
        # while the model was loading, or between printing the link and waiting, which ends the viewer normally
        status = 128 + signal.SIGINT if viewer is None else 0
    except _Stopped:
        status = 128 + signal.SIGTERM
    if viewer is not None:
        viewer.close()
    _exit(status)


def _exit(status: int) -> None:
    """End the command without waiting for a model that is still running."""
    sys.stdout.flush()
    for thread in threading.enumerate():
        if thread is threading.main_thread() or thread.daemon:
            continue
        thread.join(WORKER_GRACE_S)
        if thread.is_alive():
            # The interpreter joins the worker thread before it exits, and a forward pass cannot be interrupted: on a
            # long text that takes minutes, and its result is discarded.
            os._exit(status)
    raise typer.Exit(status)


class _Stopped(BaseException):
    """Raised when SIGTERM arrives."""


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
