"""Search for private text in every byte of written files, also in their compressed parts."""

import base64
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_BASE64 = re.compile(rb"[A-Za-z0-9+/]{40,}={0,2}")


def paths_found(folder: Path, private: str) -> list[str]:
    """Return the names of the files in a folder that contain a text."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [path.name for path in files if any(private.encode() in part for part in _parts(path))]


def _parts(path: Path) -> Iterator[bytes]:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            yield from map(archive.read, archive.namelist())
        return
    content = path.read_bytes()
    yield content
    for encoded in _BASE64.findall(content):
        with suppress(ValueError, zlib.error):
            yield (decoded := base64.b64decode(encoded))
            yield zlib.decompress(decoded)
