"""Temporary folders next to their target files, and removal of those that killed processes left behind."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

_live: set[str] = set()  # names of the folders this process is using


@contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """Create a hidden folder next to `target`, on the same file system, and remove it at the end.

    Its name contains the host and the process id. A later call for the same target removes folders of processes on
    this host that have ended.
    """
    _remove_stale(target)
    folder = target.parent / f"{_stem(target)}{host_id()}-{os.getpid()}.{secrets.token_hex(4)}.tmp"
    _live.add(folder.name)  # before it exists: other threads remove folders of this process that are not live
    try:
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        _live.discard(folder.name)
        shutil.rmtree(folder, ignore_errors=True)


def is_temporary(path: str, target: Path) -> bool:
    """Return whether `path` is a temporary folder of `target` or a file in one."""
    return path.startswith(str(target.parent / _stem(target)))


def is_alive(pid: int) -> bool:
    """Return whether a process of this host may still be running."""
    if os.name != "posix":  # os.kill(pid, 0) sends Ctrl-C on Windows
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # another user's process; a number too large for a process id
        return True
    return True


@cache
def host_id() -> str:
    """Return a short id of the host and its PID namespace: containers may share a host name."""
    with suppress(OSError):
        return _short(f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}")
    return _short(socket.gethostname())


def _remove_stale(target: Path) -> None:
    pattern = re.compile(re.escape(f"{_stem(target)}{host_id()}-") + r"(\d+)\.[a-z0-9_]{8}\.tmp")
    with suppress(OSError):  # a folder that is writable but not readable
        for path in target.parent.iterdir():
            match = pattern.fullmatch(path.name)
            # in a container, this process may have the same id as one that was killed
            if match and path.name not in _live and (int(match[1]) == os.getpid() or not is_alive(int(match[1]))):
                shutil.rmtree(path, ignore_errors=True)


def _stem(target: Path) -> str:
    return f".{target.name[:32]}."  # file names have at most 255 bytes


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
