"""`DiskLimit`: the space that the files of an output folder may take."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

from clearhead.serving.output_files import EARLIER_REQUESTS, RECORDINGS, REQUESTS, STATISTICS
from clearhead.serving.run_folder import is_locked

CHECK_SHARE = 1 / 16  # of the limit, which may be written before the files are listed again
KEPT_SHARE = 7 / 8  # of the limit, after files were deleted


class DiskLimit:
    """Limit of an output folder: half of it for lines, and half for recordings and statistics.

    A file of lines with a quarter of the limit is renamed, and replaces the one that was renamed before. The oldest
    recordings and statistics are deleted.

    Args:
        output: the folder.
        limit: number of bytes.
    """

    def __init__(self, output: Path, limit: int) -> None:
        self._output, self._limit = output, limit
        self._unlisted_bytes = math.inf  # written since the files were listed

    def add(self, path: Path) -> None:
        """Count a new recording or statistics file, and delete old ones if necessary."""
        self._unlisted_bytes += path.stat().st_size
        if self._unlisted_bytes > CHECK_SHARE * self._limit / 2:
            self._unlisted_bytes = 0
            self._delete_oldest(self._limit // 2)

    def _delete_oldest(self, limit: int) -> None:
        files: list[tuple[float, int, str]] = []
        for name in (RECORDINGS, STATISTICS):
            with suppress(FileNotFoundError), os.scandir(self._output / name) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):  # another process has deleted it
                        if entry.is_file(follow_symlinks=False):
                            facts = entry.stat(follow_symlinks=False)
                            files.append((facts.st_mtime, facts.st_size, entry.path))
        total = sum(size for _, size, _ in files)
        if total <= limit * (1 - CHECK_SHARE):
            return
        for _, size, path in sorted(files)[:-1]:
            if total <= KEPT_SHARE * limit:
                break
            with suppress(FileNotFoundError):
                os.unlink(path)
            total -= size

    def rotate_lines(self) -> None:
        """Rename the file of lines if it has reached its share. Other processes may append to it."""
        path = self._output / REQUESTS
        with suppress(FileNotFoundError), path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self._limit // 4 or is_locked(file):
                return
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):  # no other process has renamed it
                path.replace(self._output / EARLIER_REQUESTS)
