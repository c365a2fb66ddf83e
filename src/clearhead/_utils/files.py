"""Atomic writing of files: each is written under a temporary name and renamed, so that none is ever half-written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clearhead._utils.temporaries import is_temporary, temporary_folder


def resolve_target(path: str | os.PathLike[str]) -> Path:
    """Return the path that a file is to be written to. Raise if it cannot be written, before the work is done."""
    try:
        target = Path(path).resolve()
    except RuntimeError:  # before Python 3.13 no OSError
        raise OSError(f"{path}: a link that leads to itself") from None
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {target.parent}")
    if target.is_dir():
        raise IsADirectoryError(f"{path}: a folder; expected the name of a file")
    if not is_pipe_or_device(target) and not os.access(target.parent, os.W_OK | os.X_OK):
        raise PermissionError(f"{path}: files cannot be written to the folder {target.parent}")
    return target


def is_pipe_or_device(path: Path) -> bool:
    """Return whether `path` is a pipe, a terminal or another device, which cannot be replaced by a file."""
    return path.exists() and not path.is_file()


@contextmanager
def replacing(path: str | os.PathLike[str], *, backup: Path | None = None) -> Iterator[Path]:
    """Yield a temporary path to write to, which replaces `path` at the end; on an error `path` stays as it was.

    A link's target is replaced, not the link. What is no plain file (a pipe, a terminal) is written to as it is.
    The file is flushed to disk before it is renamed. An error names `path`, not the temporary file.

    Args:
        backup: a name that the old file is moved to (if it is a link, the link itself).
    """
    target = resolve_target(path)
    if is_pipe_or_device(target):
        yield target
        return
    if backup is not None:
        target = Path(path).parent.resolve() / Path(path).name
    try:
        with temporary_folder(target) as folder:
            temporary = folder / target.name
            yield temporary
            mask = os.umask(0)
            os.umask(mask)
            temporary.chmod(0o666 & ~mask)  # like any new file; some libraries create private ones
            _flush(temporary)
            if backup is not None and target.exists():
                target.replace(backup)
            temporary.replace(target)
        _flush_folder(target.parent)
    except OSError as error:
        unnamed = error.errno is not None and error.filename is None  # such as a full disk, noticed while writing
        ours = isinstance(error.filename, str | os.PathLike) and is_temporary(os.fspath(error.filename), target)
        if unnamed or ours:
            raise OSError(error.errno, error.strerror, os.fspath(path)) from None
        raise


def _flush(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    """Flush the rename itself, where the platform and the file system support it."""
    if os.name != "posix":
        return
    with suppress(OSError):  # the file is in place: an error here would report it as not written
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
