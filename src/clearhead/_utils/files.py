"""Files are written beside their place and renamed, so that none ever stands there half-written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clearhead._utils.temporaries import is_temporary, temporary_folder


def resolve_target(path: str | os.PathLike[str]) -> Path:
    """Where a file is to be written; refused if that cannot be, which is better known before the work than after it."""
    try:
        place = Path(path).resolve()
    except RuntimeError:  # before Python 3.13 no OSError
        raise OSError(f"{path}: a link that leads to itself") from None
    if not place.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {place.parent}")
    if place.is_dir():
        raise IsADirectoryError(f"{path}: a folder; expected the name of a file")
    if not is_pipe_or_device(place) and not os.access(place.parent, os.W_OK | os.X_OK):
        raise PermissionError(f"{path}: files cannot be written to the folder {place.parent}")
    return place


def is_pipe_or_device(path: Path) -> bool:
    """Return whether `path` is a pipe, a terminal or another device, which cannot be replaced by a file."""
    return path.exists() and not path.is_file()


@contextmanager
def replacing(path: str | os.PathLike[str], *, backup: Path | None = None) -> Iterator[Path]:
    """A temporary name to write to, which takes the place of `path` at the end; on an error `path` stays as it was.

    A link's target is replaced, not the link. What is no plain file (a pipe, a terminal) is written to as it is.
    The file is flushed to disk before it is renamed. An error names `path`, not the temporary file.

    Args:
        backup: a name that the old file is moved to (if it is a link, the link itself).
    """
    place = resolve_target(path)
    if is_pipe_or_device(place):
        yield place
        return
    if backup is not None:
        place = Path(path).parent.resolve() / Path(path).name
    try:
        with temporary_folder(place) as folder:
            temporary = folder / place.name
            yield temporary
            mask = os.umask(0)
            os.umask(mask)
            temporary.chmod(0o666 & ~mask)  # like any new file; some libraries create private ones
            _flush(temporary)
            if backup is not None and place.exists():
                place.replace(backup)
            temporary.replace(place)
        _flush_folder(place.parent)
    except OSError as error:
        unnamed = error.errno is not None and error.filename is None  # such as a full disk, noticed while writing
        ours = isinstance(error.filename, str | os.PathLike) and is_temporary(os.fspath(error.filename), place)
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
