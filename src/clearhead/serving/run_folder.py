"""Private folder in memory that the processes of one server share, for counters and metrics."""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import shutil
import tempfile
import time
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path
from typing import IO

from clearhead._utils.temporaries import host_id, is_alive
from clearhead.serving.metrics import OUTCOMES
from clearhead.serving.plugin import RUN_VARIABLE

MEMORY = "/dev/shm"  # Linux; elsewhere the folder of temporary files
SECONDS_TO_END = 25.0  # Kubernetes kills a container 30 seconds after SIGTERM
COUNTERS = ".counters"
LOCK = ".lock"
SLOTS = ("sent", "handled", "handled_bytes", *OUTCOMES)


class Counters:
    """Whole numbers in a file that two processes have mapped. Each of them is changed by one process only.

    Args:
        file: a file of `Counters.SIZE` bytes, open for reading and writing.
    """

    SIZE = 8 * len(SLOTS)

    def __init__(self, file: IO[bytes]) -> None:
        self._numbers = memoryview(mmap.mmap(file.fileno(), self.SIZE)).cast("Q")

    def __getitem__(self, name: str) -> int:
        return self._numbers[SLOTS.index(name)]

    def __setitem__(self, name: str, count: int) -> None:
        self._numbers[SLOTS.index(name)] = count


def run_folder() -> Path:
    """Return the folder of this server. Its first process creates it, and the others inherit the path.

    At the end, that process waits for the processes that still write results, and deletes the folder.
    """
    if RUN_VARIABLE not in os.environ:
        parent = Path(MEMORY if os.access(MEMORY, os.W_OK | os.X_OK) else tempfile.gettempdir())
        prefix = f"clearhead-{host_id()}-"
        _remove_old(parent, prefix)
        folder = tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent)
        os.environ[RUN_VARIABLE] = folder
        # a negative priority is after multiprocessing has ended its children
        Finalize(None, _end, args=(Path(folder), os.getpid()), exitpriority=-1)
    return Path(os.environ[RUN_VARIABLE])


def is_locked(file: IO[bytes]) -> bool:
    """Return whether another process has locked a file. Otherwise lock it. The kernel unlocks it when they end."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _end(folder: Path, process: int) -> None:
    if os.getpid() != process:  # a fork that ends like its parent
        return
    deadline = time.monotonic() + SECONDS_TO_END
    while time.monotonic() < deadline and any(map(_is_writing, folder.glob(f"*{LOCK}"))):
        time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)


def _is_writing(lock: Path) -> bool:
    """Return whether a process writes results."""
    with lock.open("rb") as file:
        return is_locked(file)


def _remove_old(parent: Path, prefix: str) -> None:
    """Remove the folders of killed servers."""
    pattern = re.compile(re.escape(prefix) + r"(\d+)-\w+")
    for path in parent.iterdir():
        match = pattern.fullmatch(path.name)
        with suppress(OSError):
            if match and path.stat().st_uid == os.getuid() and not is_alive(int(match[1])):
                shutil.rmtree(path, ignore_errors=True)
