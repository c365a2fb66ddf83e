"""What `clearhead view` shows, and what it says while it serves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from clearhead.cli_models import load_model, texts_to_read, usable_device

if TYPE_CHECKING:
    from clearhead.models import Loaded
    from clearhead.recording import Recording
    from clearhead.roles import Roles
    from clearhead.transformer.translate import Translator


def what_to_show(
    text: str | None, files: list[Path] | None, model: str | None, device: str | None, dtype: str, download: bool
) -> tuple[Callable[[], Recording | Loaded | Translator], list[str] | None]:
    """What loads a recording; or a model and its texts, of which the first is shown first."""
    if text is not None and text.endswith(".safetensors"):
        if files or model is not None:
            raise ValueError(f"{text} is a recording, which --file and --model do not go with")
        return lambda: _read_recording(text, device), None
    texts = texts_to_read(text, files) if text is not None or files else None
    return lambda: load_model("en-ja" if model is None else model, device, dtype, download), texts


def serve(
    shown: Callable[[], Recording | Loaded | Translator],
    texts: list[str] | None,
    roles: Path | None,
    port: int,
    browser: bool,
) -> None:
    """Until Ctrl-C. Says where the page is, and how to reach it from another machine."""
    found = None if roles is None else _read_roles(roles)
    with Console(stderr=True).status("loading and running the model …"):
        from clearhead.viewer.serving import view

        viewer = view(shown, texts, roles=found, port=port, browser=browser, wait=False)
    if viewer.port != port:
        print(f"Port {port} is in use; this is the next free one.")
    print(f"Open  {viewer.url}")
    print(f"From another machine first:  {viewer.forwarding}")
    print("Ctrl-C stops it.", flush=True)
    viewer.wait()


def _read_recording(path: str, device: str | None) -> Recording:
    from clearhead.recording import Recording

    return Recording.load(path, device=usable_device(device))


def _read_roles(path: Path) -> Roles:
    from clearhead.roles import Roles

    try:
        return Roles.from_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
