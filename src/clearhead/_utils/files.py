"""Atomic writing of files: write to a temporary file, then rename it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clearhead._utils.temporaries import is_temporary, temporary_folder


def resolve_target(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a file to write; raise if it cannot be written.

    Call it before a long computation, so that a wrong path fails early.
    """
    try:
        target = Path(path).resolve()
    except RuntimeError:  # Python 3.13 and later raise OSError instead
        raise OSError(f"{path}: a symbolic link that points to itself") from None
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {target.parent}")
    if target.is_dir():
        raise IsADirectoryError(f"{path}: a folder; expected the name of a file")
    if not is_pipe_or_device(target) and not os.access(target.parent, os.W_OK | os.X_OK):
        raise PermissionError(f"{path}: no permission to write to the folder {target.parent}")
    return target


def is_pipe_or_device(path: Path) -> bool:
    """Return whether `path` is a pipe, a terminal or another device, which a file must not replace."""
    return path.exists() and not path.is_file()


@contextmanager
def replacing(path: str | os.PathLike[str], *, backup: Path | None = None) -> Iterator[Path]:
    """Yield a temporary path to write to, and replace `path` with it at the end. After an error `path` is unchanged.

    For a symbolic link, its target is replaced. Pipes and devices are not replaced: `path` itself is yielded.
    The file is flushed to disk before it is renamed. Errors name `path`, not the temporary file.

    Args:
        path: file to replace.
        backup: new path of the old file. If `path` is a symbolic link, the link itself is moved.
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
            temporary.chmod(0o666 & ~mask)  # default permissions: some libraries create private files
            _flush(temporary)
            if backup is not None and target.exists():
                target.replace(backup)
            temporary.replace(target)
        _flush_folder(target.parent)
    except OSError as error:
        unnamed = error.errno is not None and error.filename is None  # such as ENOSPC from write()
        ours = isinstance(error.filename, str | os.PathLike) and is_temporary(os.fspath(error.filename), target)
        if unnamed or ours:
            raise OSError(error.errno, error.strerror, os.fspath(path)) from None
        raise


def _flush(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    """Flush the rename to disk if the platform and the file system support it."""
    if os.name != "posix":
        return
    with suppress(OSError):  # the rename has succeeded: an error here would report a written file as failed
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file in UTF-8, atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
