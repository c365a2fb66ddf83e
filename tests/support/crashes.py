"""Simulated crashes at any file operation, within the test's process."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from clearhead.weights import serialization

EVENTS = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.truncate", "tempfile.mkdtemp"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Killed(BaseException):
    """Simulated death of the process: no later operation reaches the disk."""


class _Deaths:
    """Counter of file operations below `folder`. Operation `at` and all later ones raise `Killed`."""

    def __init__(self, folder: Path, at: int | None) -> None:
        self.folder, self.at, self.names = str(folder), at, []

    def happens(self, name: str) -> None:
        if self.at is not None and len(self.names) >= self.at:
            raise Killed
        self.names.append(name)

    def concerns(self, path: object) -> bool:
        return isinstance(path, str | os.PathLike) and os.path.abspath(os.fspath(path)).startswith(self.folder)


_watching: list[_Deaths] = []
_installed = False


def _hook(event: str, arguments: tuple) -> None:
    if not _watching:
        return
    deaths = _watching[-1]
    is_write = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING
    if (event in EVENTS or is_write) and deaths.concerns(arguments[0]):
        deaths.happens(event)


@contextmanager
def operations(folder: Path, monkeypatch, at: int | None = None) -> Iterator[list[str]]:
    """Count file operations. With `at`, crash before the operation with that index, or halfway if it is a write.

    Counted are the operations that Python reports to audit hooks, flushes, and writes by safetensors and
    `Path.write_text`.
    """
    global _installed
    if not _installed:
        sys.addaudithook(_hook)  # cannot be removed; does nothing outside this context
        _installed = True
    deaths = _Deaths(folder, at)
    flush, save_file, write_text = os.fsync, serialization.save_file, Path.write_text

    def torn(path: Path, write: Callable[[], object], name: str) -> None:
        """Write in two operations: a crash before the first writes nothing, before the second half a file."""
        deaths.happens(name)
        try:
            deaths.happens(f"{name}, whole")
        except Killed:
            _watching.remove(deaths)
            write()
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
            _watching.append(deaths)
            raise
        write()

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: (deaths.happens("fsync"), flush(handle))[1])
        patch.setattr(
            serialization,
            "save_file",
            lambda tensors, path, facts: torn(Path(path), lambda: save_file(tensors, path, facts), "save_file"),
        )
        patch.setattr(
            Path,
            "write_text",
            lambda self, *given, **options: torn(self, lambda: write_text(self, *given, **options), "write_text"),
        )
        _watching.append(deaths)
        try:
            yield deaths.names
        finally:
            _watching.remove(deaths)
