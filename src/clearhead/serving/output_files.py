"""Files of an output folder: safe names, atomic writes, and JSON lines that several processes may append."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from urllib.parse import quote

from clearhead._utils.temporaries import temporary_folder
from clearhead._utils.text import printable

REQUESTS, RECORDINGS, STATISTICS = "requests.jsonl", "recordings", "statistics"
EARLIER_REQUESTS = "requests.1.jsonl"  # lines before those of `REQUESTS`, with a limit of disk space
MAX_NAME = 160  # letters of a name; file systems allow 255 bytes, and temporary names are longer


def file_stem(name: str) -> str:
    """Return a name without letters that file systems or shells treat specially. Different names stay different."""
    stem = quote(name, safe="", errors="surrogatepass") or "%"
    stem = stem.replace(".", "%2E", 1) if stem.startswith(".") else stem  # not hidden
    if len(stem) <= MAX_NAME:
        return stem
    return f"{stem[:MAX_NAME]}~{hashlib.sha256(stem.encode()).hexdigest()[:16]}"


def recording_path(output: Path, request: str) -> Path:
    """Return the path of a request's recording."""
    return output / RECORDINGS / f"{file_stem(request)}.safetensors"


def statistics_path(output: Path, request: str) -> Path:
    """Return the path of the statistics of a request for each row and head."""
    return output / STATISTICS / f"{file_stem(request)}.safetensors"


def check_writable(output: Path) -> None:
    """Raise if no file can be created and written in a folder. Create the folder."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=output, buffering=0) as file:
            file.write(b"\n")
    except OSError as error:
        reason = f"cannot be written ({error.strerror})"
        raise ValueError(f"output is {printable(str(output))}, which {reason}; expected a folder for results") from None


@contextmanager
def placing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, and move the file to `path` at the end. Create the folder of `path`.

    The temporary folder is outside of that folder: listing a folder of many files for each of them is quadratic.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(path.parent) as folder:
        yield folder / path.name
        (folder / path.name).chmod(0o600)  # prompts and answers are private
        (folder / path.name).replace(path)


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Append a JSON object to a file as one line, with one write.

    `clearhead._utils.files.append_json_line` truncates an incomplete last line. Here another process may be writing it,
    so it is kept and ended.
    """
    line = json.dumps(record, allow_nan=False).encode() + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            line = b"\n" + line
        while line:  # a write to a nearly full disk is incomplete; the next one raises
            line = line[os.write(handle, line) :]
    finally:
        os.close(handle)
