"""Cells of printed matrices: numbers in the notations of Markdown, LaTeX and plain text."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from clearhead.explain._printed_matrix import BLANK
from clearhead.explain.reading._exact import is_exact, read_exact
from clearhead.explain.reading._markup import plain_text

_BLANKS = {"", "_", "__", "___", "…", "...", "·", ".", "?", "□", "-", "–", "—", "..", "⋯", "⋮", "⋱"}
_MINUS = str.maketrans(
    {"−": "-", "–": "-", "‑": "-", "﹣": "-", "－": "-", "\u00a0": " ", "\u202f": " ", "\u2009": " "}
)
_INFINITE = re.compile(r"-\s*(∞|inf|infinity|infty|np\.inf|float\('inf'\))", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:[, ]\d{3})+(?:\.\d+)?")  # not 0,500, which has a decimal comma
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_POWER = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*[×·x]\s*10\^\{?([+-]?\d{1,3})\}?")
MAX_CELL_LETTERS = 200


def read_cell(text: str) -> str | None:
    r"""Return a cell as a TOML number or `"_"` for a blank, or None if it is neither.

    Examples:
        >>> [read_cell(cell) for cell in ("**0.50**", "−.5", "$-\\infty$", "1,024", "25 %", "…", "cat")]
        ['0.50', '-0.5', '-inf', '1024', '0.25', '_', None]
    """
    if len(text) > MAX_CELL_LETTERS:
        return None
    cell = plain_text(text).translate(_MINUS).strip()
    if cell[:1] == "{" and cell[-1:] == "}":
        cell = cell[1:-1].strip()
    if "=" in cell or "≈" in cell:
        cell = re.split("[=≈]", cell)[-1].strip()
    if cell in _BLANKS:
        return BLANK
    if _INFINITE.fullmatch(cell):
        return "-inf"
    if is_exact(cell):
        return read_exact(cell)
    if power := _POWER.fullmatch(cell):
        return _toml_number(f"{power[1]}e{int(power[2])}")
    if cell.endswith("%"):
        number_text = cell[:-1].strip()
        return _toml_number(number_text, percent=True) if _NUMBER.fullmatch(number_text) else None
    if re.match(r"[+-]\s+[\d.]", cell):
        cell = cell[0] + cell[1:].strip()
    if _THOUSANDS.fullmatch(cell):
        cell = cell.replace(",", "").replace(" ", "")
    elif _DECIMAL_COMMA.fullmatch(cell):
        cell = cell.replace(",", ".")
    return _toml_number(cell) if _NUMBER.fullmatch(cell) else None


def read_vector(text: str) -> list[str] | None:
    """Return the cells of a bracketed list such as `[0.1, 0.2]`, or None."""
    inner = plain_text(text[: MAX_CELL_LETTERS * 64]).strip()
    if len(inner) < 2 or (inner[0], inner[-1]) not in (("[", "]"), ("(", ")")):
        return None
    parts = [part for part in re.split(r"[,;]\s*|\s+", inner[1:-1].strip()) if part]
    cells = [read_cell(part) for part in parts]
    return [cell for cell in cells if cell is not None] if parts and None not in cells else None


def _toml_number(text: str, *, percent: bool = False) -> str | None:
    """Write a number as TOML requires, with all its printed digits."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        return None
    if percent:
        value = value.scaleb(-2)
    if not -60 <= value.adjusted() <= 300:
        return "0.0" if value == 0 else str(value).replace("E", "e") if abs(value.adjusted()) <= 300 else None
    return f"{value:f}"
