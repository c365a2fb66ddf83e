"""SHA-256 checksum of a safetensors file, stored in the metadata of the same file.

The checksum covers every byte of header and data. It is computed with zeros in place of its 64 digits. Two metadata
entries announce it: if one of them is damaged, the file is still recognized as one with a checksum.
"""

from __future__ import annotations

import hashlib
import os
import re
from io import BufferedIOBase
from typing import Any

BLANK_DIGEST = "0" * 64
_STORED_DIGEST = re.compile(rb'\\"sha256\\": \\"([0-9a-f]{64})\\"')  # JSON within a JSON string


def blank(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata with entries for a checksum. `seal` fills in the digits."""
    return {"checksum": "sha256", **facts, "sha256": BLANK_DIGEST}


def is_announced(facts: dict[str, Any]) -> bool:
    """Return whether the file was written with a checksum."""
    return "checksum" in facts or "sha256" in facts


def without_checksum(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata without the entries for a checksum."""
    return {name: fact for name, fact in facts.items() if name not in ("checksum", "sha256")}


def seal(path: str | os.PathLike[str]) -> None:
    """Compute the checksum of a file and write it into the entries that `blank` added."""
    with open(path, "rb+") as file:
        header = _header(file)
        match = _STORED_DIGEST.search(header)
        if match is None:
            raise ValueError(f"{path}: the metadata has no entry for a checksum")
        digest = _digest(file, header, match)
        file.seek(match.start(1))
        file.write(digest)


def matches(path: str | os.PathLike[str]) -> bool:
    """Return whether the stored checksum is that of the file's contents. Reads the file once, in chunks."""
    with open(path, "rb") as file:
        header = _header(file)
        match = _STORED_DIGEST.search(header)
        return match is not None and match[1] == _digest(file, header, match)


def _header(file: BufferedIOBase) -> bytes:
    """Return the header, with the eight bytes of its length, and leave `file` at the start of the data."""
    length = file.read(8)
    return length + file.read(int.from_bytes(length, "little"))


def _digest(file: BufferedIOBase, header: bytes, stored: re.Match[bytes]) -> bytes:
    digest = hashlib.sha256(header[: stored.start(1)] + BLANK_DIGEST.encode() + header[stored.end(1) :])
    return hashlib.file_digest(file, lambda: digest).hexdigest().encode()
