"""Writing of files that survives crashes: atomic replacement, and appending of JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from clearhead._utils.temporaries import is_temporary, temporary_folder

BLOCK_BYTES = 2**16  # of a file that is read from its end


def resolve_target(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a file to write; raise if it cannot be written.

    Call it before a long computation, so that a wrong path fails early.
    """
    if is_pipe_or_device(Path(path)):
        return Path(path).absolute()  # the target of /dev/stdout is not a path if it is a pipe, such as pipe:[7]
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {target.parent}")
    if target.is_dir():
        raise IsADirectoryError(f"{path}: a folder; expected the name of a file")
    if target.is_symlink():  # `Path.resolve` raises here before Python 3.13 only
        raise OSError(f"{path}: a symbolic link that points to itself")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise PermissionError(f"{path}: no permission to write to the folder {target.parent}")
    return target


def is_pipe_or_device(path: Path) -> bool:
    """Return whether `path` is a pipe, a terminal or another device, which a file must not replace."""
    return path.exists() and not path.is_file() and not path.is_dir()


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


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a binary file, atomically."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def append_json_line(path: str | os.PathLike[str], record: dict[str, Any]) -> None:
    """Append a JSON object to a file as one line.

    If a crash left an incomplete last line that begins with the same key, it is removed. Any other last line is kept
    and ended first.
    """
    line = json.dumps(record, allow_nan=False).encode() + b"\n"
    target = Path(path)
    if is_pipe_or_device(target):
        with target.open("wb") as pipe:
            pipe.write(line)
        return
    with target.open("a+b") as file:
        file.write(_end_of_last_line(file, line[: line.index(b":")]) + line)


def _end_of_last_line(file: BinaryIO, opening: bytes) -> bytes:
    """Return what ends the last line of a file. Truncate the file if that line is the beginning of a JSON object.

    Args:
        file: a file that is open for reading and appending.
        opening: first bytes of the objects.
    """
    size = end = file.seek(0, os.SEEK_END)
    last = b""
    while end and b"\n" not in last:
        start = max(0, end - BLOCK_BYTES)
        file.seek(start)
        last, end = file.read(end - start) + last, start
    last = last.rpartition(b"\n")[2]
    if not last:
        return b""
    if (last.startswith(opening) or opening.startswith(last)) and not _is_json(last):
        file.truncate(size - len(last))
        return b""
    return b"\n"


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
