"""Lock on a folder, which the operating system releases when its process ends."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clearhead._utils.extras import needs_extra

LOCK_FILES = (".lock", ".lock.holder")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder; raise an error that names the other process if it is locked already.

    Lock files of a killed process do not block: the operating system has released its lock.
    """
    with needs_extra("translate", "a lock on a folder"):
        from filelock import FileLock, Timeout

    lock, holder = (folder / name for name in LOCK_FILES)
    file_lock = FileLock(lock)
    try:
        file_lock.acquire(blocking=False)
    except Timeout:
        raise BlockingIOError(f"{folder}: in use by {_read(holder)}; wait for it to end, or end it") from None
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(folder)) from None
    try:
        holder.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
        yield
    finally:
        try:
            for path in (holder, lock):  # before the release, else this would race with the next holder
                with suppress(OSError):
                    path.unlink()
        finally:
            file_lock.release()


def _read(holder: Path) -> str:
    try:
        return holder.read_text(encoding="utf-8") or "another process"
    except (OSError, ValueError):
        return "another process"
