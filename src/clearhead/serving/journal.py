"""`Journal`: the number of requests that have no line yet, in a file that outlives the processes of a server."""

from __future__ import annotations

import os
import secrets
import struct
from contextlib import suppress
from pathlib import Path
from typing import IO

from clearhead.serving.output_files import placing
from clearhead.serving.run_folder import is_locked

FOLDER = "under-way"
_FORMAT = "<QQQ"  # requests in the engine, sent to the process that writes, written there


class Journal:
    """Three numbers in a file of the output folder. Overwriting them requires no free space on the disk.

    It stays locked until all processes that have it open have ended. An error of the disk leaves the old numbers.

    Args:
        path: path of the file.
        file: the file, open for reading and writing without a buffer.
    """

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path, self.file = path, file

    @classmethod
    def create(cls, output: Path) -> Journal:
        """Create the journal of this process. Other processes see it when it is locked and complete."""
        path = output / FOLDER / f"{os.getpid()}-{secrets.token_hex(4)}"
        with placing(path) as temporary:
            file = temporary.open("x+b", buffering=0)
            is_locked(file)
            file.write(struct.pack(_FORMAT, 0, 0, 0))
        return cls(path, file)

    def set_requests(self, in_engine: int, sent: int) -> None:
        """Write how many requests the engine runs, and how many have been sent to the process that writes."""
        self._write(struct.pack("<QQ", in_engine, sent), 0)

    def set_written(self, count: int) -> None:
        """Write how many requests the other process has written, dropped or failed to write."""
        self._write(struct.pack("<Q", count), 16)

    def end(self) -> None:
        """Delete the file if no request is missing."""
        with suppress(OSError):
            if _missing(self.file) == 0:
                self.path.unlink()

    def _write(self, values: bytes, offset: int) -> None:
        with suppress(OSError):
            os.pwrite(self.file.fileno(), values, offset)


def take_missing(output: Path) -> int:
    """Return how many requests were under way when earlier servers ended, and delete their journals."""
    missing = 0
    for path in (output / FOLDER).glob("*-*"):
        with suppress(OSError, struct.error), path.open("r+b") as file:
            if not is_locked(file):
                missing += _missing(file)
                path.unlink()
    return missing


def _missing(file: IO[bytes]) -> int:
    in_engine, sent, written = struct.unpack(_FORMAT, os.pread(file.fileno(), struct.calcsize(_FORMAT), 0))
    return in_engine + sent - written
