"""Files are written beside their place and renamed, so that none ever stands there half-written; and read by lines."""

from __future__ import annotations

import gzip
import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def place_of(path: str | os.PathLike[str]) -> Path:
    """Where a file is to be written; refused if that cannot be, which is better known before the work than after it."""
    try:
        place = Path(path).resolve()
    except RuntimeError:  # before Python 3.13 no OSError
        raise OSError(f"{path}: a link that leads to itself") from None
    if not place.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {place.parent}")
    if place.is_dir():
        raise IsADirectoryError(f"{path}: a folder; expected the name of a file")
    return place


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary name to write to, which takes the place of `path` at the end; on an error `path` stays as it was.

    A link's target is replaced, not the link. What is no plain file (a pipe, a terminal) is written to as it is.
    """
    place = place_of(path)
    if place.exists() and not place.is_file():
        yield place
        return
    handle, name = tempfile.mkstemp(prefix=f".{place.name[:32]}.", dir=place.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # as any new file; mkstemp's own is private
        temporary.replace(place)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def numbered_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
    """A text file's lines, numbered from 1; of a .gz file too. Only a line feed ends one, not U+2028 and its like."""
    number = 0
    opened = gzip.open if str(path).endswith(".gz") else open
    try:
        with opened(path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}, line {number}: not UTF-8 ({error.reason})") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}, after line {number}: not a whole gzip file ({error})") from None
