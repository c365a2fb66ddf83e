"""Temporary folders beside the files they are made for, and removal of those that dead processes have left."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_live: set[str] = set()  # names of the folders this process is using


@contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """Make a hidden folder beside `target`, on the same file system, and remove it afterwards.

    Its name holds the host and the process id. The next call for the same target removes folders whose process on this
    host has ended.
    """
    _remove_stale(target)
    folder = Path(tempfile.mkdtemp(prefix=f"{_stem(target)}{_host()}-{os.getpid()}.", suffix=".tmp", dir=target.parent))
    _live.add(folder.name)
    try:
        yield folder
    finally:
        _live.discard(folder.name)
        shutil.rmtree(folder, ignore_errors=True)


def is_temporary(path: str, target: Path) -> bool:
    """Return whether `path` is a temporary folder of `target`, or lies in one."""
    return path.startswith(str(target.parent / _stem(target)))


def _remove_stale(target: Path) -> None:
    if os.name != "posix":  # os.kill(pid, 0) sends Ctrl-C on Windows
        return
    pattern = re.compile(re.escape(f"{_stem(target)}{_host()}-") + r"(\d+)\.[a-z0-9_]{8}\.tmp")
    for path in target.parent.iterdir():
        found = pattern.fullmatch(path.name)
        if found and path.name not in _live and not _is_another_process(int(found[1])):
            shutil.rmtree(path, ignore_errors=True)


def _is_another_process(pid: int) -> bool:
    """Return whether `pid` is alive and not this process, which may have the id of one that died (in a container)."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # of another user; too large for an id: not ours
        return True
    return True


def _stem(target: Path) -> str:
    return f".{target.name[:32]}."  # file names have at most 255 bytes


def _host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
