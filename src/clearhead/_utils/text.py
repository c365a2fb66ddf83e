"""Escaping of untrusted text for terminals, labels and JSON, and counts with nouns."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size

TOKEN_COLUMNS = 80
# Control characters (C0 without tab and newline, DEL, C1), line and paragraph separators, bidirectional embeddings,
# overrides and isolates, and lone surrogates. Each of them can control a terminal or mislead a reader.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Escape control characters and bidirectional overrides, as in `\x1b` or `\u202e`, for printing on a terminal.

    Tabs, newlines and characters that some scripts require, such as the zero-width joiner, are kept.
    """
    return _UNSAFE.sub(lambda match: _escaped(match[0]), text)


def one_line(message: Exception | str) -> str:
    """Return the first 300 characters of a message on one line, with control characters escaped."""
    return visible_text(" ".join(str(message)[:300].split()))


def visible_text(token: str) -> str:
    r"""Return a token or name on one line, with invisible characters escaped. Blank text is quoted."""
    shown = "".join(letter if letter.isprintable() else _escaped(letter) for letter in token)
    return shown if shown.strip() else f'"{shown}"'


def is_unicode(text: str) -> bool:
    """Return False for text with a lone surrogate, which UTF-8 cannot encode."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def short_token(token: str, columns: int = TOKEN_COLUMNS) -> str:
    """Return a token with invisible characters escaped, truncated to a number of terminal columns."""
    text = visible_text(token[: 4 * columns])
    if len(token) <= 4 * columns and cell_len(text) <= columns:
        return text
    return f"{set_cell_size(text, columns - 1).rstrip()}…"


def count_noun(count: int, noun: str) -> str:
    """Return a count and its noun: "1 cell", "2 cells"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def join_words(words: Sequence[str]) -> str:
    """Return a list in words: "Q", "Q and K", "Q, K and V"."""
    return " and ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


def format_bytes(count: float) -> str:
    """Return a number of bytes with its unit, such as "1.5 GiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.3g} {unit}" if count < 999.5 else f"{count:,.0f} {unit}"  # .3g would be 1e+03
        count /= 1024
    return f"{count:.3g} TiB"


def json_text(value: object, *, indent: int | None = None) -> str:
    r"""Return JSON that is safe to print: unprintable characters are escaped, NaN and infinities become null."""
    text = json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False)
    return "".join(letter if letter.isprintable() or letter == "\n" else json.dumps(letter)[1:-1] for letter in text)


def _escaped(letter: str) -> str:
    return repr(letter)[1:-1]


def _finite(value: Any) -> Any:
    """Replace NaN and infinities, which JSON does not support, by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value
