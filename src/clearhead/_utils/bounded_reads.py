"""Bounded reading of text from files and standard input, and the limits on the input of commands."""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO


@dataclass(frozen=True)
class Limit:
    """Limit on input, which an environment variable overrides."""

    variable: str
    default: int
    unit: str

    @property
    def value(self) -> int:
        raw = os.environ.get(self.variable)
        if raw is None:
            return self.default
        if not raw.isdecimal() or len(raw) > 18 or int(raw) == 0:
            raise ValueError(f"{self.variable} is {raw[:40]!r}; expected a whole number of {self.unit} above 0")
        return int(raw)

    def exceeded(self, what: str) -> ValueError:
        """Return the error for input above the limit. `what` describes it, such as "FILE is too large"."""
        return ValueError(f"{what}; expected at most {self.value:,} {self.unit} ({self.variable} raises the limit)")


TEXT_LIMIT = Limit("CLEARHEAD_MAX_TEXT_MIB", 256, "MiB")  # of one file, or of standard input
LINE_LIMIT = Limit("CLEARHEAD_MAX_LINE_KIB", 1024, "KiB")  # of one line of a file that is read line by line
TOKEN_LIMIT = Limit("CLEARHEAD_MAX_TOKENS", 2**20, "tokens")  # of one text for a language model
SENTENCE_LIMIT = Limit("CLEARHEAD_MAX_SENTENCE_TOKENS", 2**12, "tokens")  # of one sentence for a translator
BEAM_LIMIT = Limit("CLEARHEAD_MAX_BEAMS", 1024, "beams")  # memory grows with beams × vocabulary


def read_text(path: Path) -> str:
    """Return the contents of a text file in UTF-8."""
    with path.open("rb") as file:
        return _text(str(path), file)


def stdin_text() -> str:
    """Return the contents of standard input."""
    return _text("standard input", _stdin())


def numbered_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file or a .gz file, numbered from 1.

    Only a line feed ends a line. Other separators, such as U+2028, are part of it.
    """
    open_file = gzip.open if str(path).endswith(".gz") else open
    with open_file(path, "rb") as file:
        yield from _lines(str(path), file)


def stdin_lines() -> list[str]:
    """Return the lines of standard input."""
    return [line for _, line in _lines("standard input", _stdin())]


def _stdin() -> BinaryIO:
    if sys.stdin is None:
        raise ValueError("standard input is closed; expected text, such as from a pipe")
    return sys.stdin.buffer


def _text(name: str, file: BinaryIO) -> str:
    max_bytes = TEXT_LIMIT.value * 2**20
    content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise TEXT_LIMIT.exceeded(f"{name} is too large")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 text ({error.reason})") from None


def _lines(name: str, file: BinaryIO | gzip.GzipFile) -> Iterator[tuple[int, str]]:
    max_line_bytes, remaining_bytes, line_number = LINE_LIMIT.value * 2**10, TEXT_LIMIT.value * 2**20, 0
    try:
        while raw := file.readline(max_line_bytes + 1):
            line_number += 1
            remaining_bytes -= len(raw)
            if len(raw) > max_line_bytes:
                raise LINE_LIMIT.exceeded(f"{name}, line {line_number} is too long")
            if remaining_bytes < 0:
                raise TEXT_LIMIT.exceeded(f"{name} is too large")
            yield line_number, raw.decode("utf-8-sig" if line_number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}, line {line_number}: not UTF-8 ({error.reason})") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{name}, after line {line_number}: incomplete or damaged gzip file ({error})") from None
