"""Parsing of short texts that people write in options and settings: choices of indices, and sizes in bytes."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?(B|KiB|MiB|GiB|TiB)", re.ASCII)
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def shortened(text: str) -> str:
    """Return the `repr` of at most 40 characters of a text."""
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


def parse_indices(name: str, text: str, count: int, outside: str) -> set[int]:
    """Return the indices of a choice such as "0,3-5".

    Args:
        name: name of the option, for errors.
        text: numbers and ranges, separated by commas.
        count: number of indices that exist.
        outside: end of the error for other indices, such as ", but the layers are 0 to 3".
    """
    chosen: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        last = last or first
        if not (first.isdecimal() and last.isdecimal()):
            raise ValueError(f"{name} is {shortened(text)}; expected numbers and ranges such as 0,3-5")
        if max(len(first), len(last)) > 9 or not int(first) <= int(last) < count:  # checked before the range is built
            raise ValueError(f"{name} is {shortened(text)}{outside}")
        chosen |= set(range(int(first), int(last) + 1))
    return chosen


def parse_bytes(name: str, text: str) -> int:
    """Return the bytes of a size with a unit, such as "1.5 GiB"."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{name} is {shortened(text)}; expected a size such as 500 MiB or 2 GiB")
    return round(float(match[1]) * _UNITS[match[2]])
