"""SHA-256 checksum of a safetensors file or a JSON object, stored in the same file.

The checksum covers every byte of the file. It is computed with zeros in place of its 64 digits. In the metadata of a
safetensors file, two entries announce it: if one of them is damaged, the file is still recognized as one with a
checksum. In a JSON object, it is the last entry.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from io import BufferedIOBase
from typing import Any

BLANK_DIGEST = "0" * 64
_STORED_DIGEST = re.compile(rb'\\"sha256\\": \\"([0-9a-f]{64})\\"')  # JSON within a JSON string
_LAST_DIGEST = re.compile(r'"sha256": "([0-9a-f]{64})"\n}\n\Z')


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


def sealed_json(entries: dict[str, Any]) -> str:
    """Return a JSON object on several lines, with its checksum as the last entry."""
    text = json.dumps({**entries, "sha256": BLANK_DIGEST}, indent=1, ensure_ascii=False) + "\n"
    before, after = text.rsplit(BLANK_DIGEST, 1)
    return f"{before}{_text_digest(text)}{after}"


def json_matches(text: str) -> bool:
    """Return whether the last entry of a JSON object is the checksum of its text."""
    match = _LAST_DIGEST.search(text)
    return match is not None and match[1] == _text_digest(text[: match.start(1)] + BLANK_DIGEST + text[match.end(1) :])


def file_digest(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 checksum of a file's contents."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _header(file: BufferedIOBase) -> bytes:
    """Return the header, with the eight bytes of its length, and leave `file` at the start of the data."""
    length = file.read(8)
    return length + file.read(int.from_bytes(length, "little"))


def _digest(file: BufferedIOBase, header: bytes, stored: re.Match[bytes]) -> bytes:
    digest = hashlib.sha256(header[: stored.start(1)] + BLANK_DIGEST.encode() + header[stored.end(1) :])
    return hashlib.file_digest(file, lambda: digest).hexdigest().encode()
