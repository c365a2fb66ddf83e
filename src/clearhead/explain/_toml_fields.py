"""Readers of single keys of an example file. An error names the key, its value and the expected value."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from clearhead.explain._printed_matrix import short_repr, to_float


def read_string(name: str, raw: object) -> str:
    """Read a text in quotes."""
    if not isinstance(raw, str):
        raise ValueError(f"{name} is {short_repr(raw)}; expected text in quotes")
    return raw


def read_int(name: str, raw: object, least: int) -> int:
    """Read a whole number."""
    if type(raw) is not int or not least <= raw < 2**63:
        raise ValueError(f"{name} is {short_repr(raw)}; expected a whole number, {least} or more")
    return raw


def read_table(name: str, raw: object) -> Mapping[str, object]:
    """Read a table."""
    if not isinstance(raw, Mapping):
        raise ValueError(f"{name} is {short_repr(raw)}; expected a table, [{name}]")
    return raw


def per_head(name: str, raw: object, heads: int, depth: int = 2, noun: str = "head") -> list[tuple[str, object]]:
    """Return a label and an entry for each head. The entry of a single head may be given without a list.

    Args:
        name: name of the key in errors.
        raw: a list of entries, or one entry.
        heads: number of entries.
        depth: depth of an entry: 2 for a matrix, 1 for a list of numbers.
        noun: kind of head in errors.
    """
    if heads == 1 and not _nested(raw, depth + 1):
        return [(name, raw)]
    kinds, kind = ("matrices", "matrix") if depth == 2 else ("lists", "list")
    expected = f"{heads} {kind if heads == 1 else kinds}, one for each {noun}"
    if _nested(raw, depth) and isinstance(raw, list) and not any(_nested(entry, depth) for entry in raw):
        raise ValueError(f"{name} is a single {kind}; expected {expected}")
    if not isinstance(raw, list) or len(raw) != heads:
        content = f"has {len(raw)} entries" if isinstance(raw, list) else f"is {short_repr(raw)}"
        raise ValueError(f"{name} {content}; expected {expected}")
    return [(f"{name}: {noun} {head}", entry) for head, entry in enumerate(raw, 1)]


def _nested(raw: object, depth: int) -> bool:
    return depth == 0 or (isinstance(raw, list) and bool(raw) and _nested(raw[0], depth - 1))


def read_scale(scale: object, d_k: object) -> tuple[float | None, int | None]:
    """Read the factor of the scores, 1 for "none", and the stated d_k."""
    if d_k is not None:
        if scale is not None:
            raise ValueError("scale and d_k are both given; expected one of them (d_k = 64 divides by √64)")
        return None, read_int("d_k", d_k, least=1)
    if scale is None:
        return None, None
    if scale == "none":
        return 1.0, None
    expected = 'a number above 0, or "none" (d_k = 64 divides by √64)'
    if isinstance(scale, bool) or not isinstance(scale, int | Decimal) or not 0 < to_float(Decimal(scale)) < 2**63:
        raise ValueError(f"scale is {short_repr(scale)}; expected {expected}")
    return to_float(Decimal(scale)), None
