"""TOML text of values, strings, matrices and comments, so that files can be written without the `explain` extra."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

from clearhead._utils.text import visible_text
from clearhead.explain._printed_matrix import BLANK

MAX_COMMENT_LETTERS = 100
Cells = Sequence[Sequence[str]]  # numbers as printed, or BLANK


def toml_string(text: str) -> str:
    """Return a text in quotes. JSON escapes are valid in TOML; DEL must be escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_comment(text: str) -> str:
    """Return a comment line."""
    line = visible_text(text)
    return f"# {line if len(line) <= MAX_COMMENT_LETTERS else f'{line[: MAX_COMMENT_LETTERS - 1]}…'}"


def toml_value(value: object, indent: str = "") -> str:
    """Return a value that `tomllib` can read. A list of lists has one entry on each line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return toml_string(value)
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], list | tuple):
            return toml_lines((toml_value(entry, f"{indent}  ") for entry in value), indent)
        return f"[{', '.join(toml_value(entry) for entry in value)}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{toml_string(key)} = {toml_value(entry)}' for key, entry in value.items())} }}"
    return _number(str(value)) if isinstance(value, Decimal) else str(value)


def toml_matrix(cells: Cells, indent: str = "") -> str:
    """Return a matrix with one row on each line. Numbers keep their printed digits."""
    quoted = f'"{BLANK}"'
    rows = (", ".join(quoted if cell == BLANK else _number(cell) for cell in row) for row in cells)
    return toml_lines((f"[{row}]" for row in rows), indent)


def toml_matrices(matrices: Sequence[Cells | None]) -> str:
    """Return one matrix, or a list of one matrix for each head. None stands for a head that is not printed."""
    if len(matrices) == 1 and matrices[0] is not None:
        return toml_matrix(matrices[0])
    return toml_lines(f'"{BLANK}"' if cells is None else toml_matrix(cells, "  ") for cells in matrices)


def toml_lines(entries: Iterable[str], indent: str = "") -> str:
    """Return a list of TOML values with one of them on each line."""
    return "[\n" + "".join(f"{indent}  {entry},\n" for entry in entries) + f"{indent}]"


def _number(printed: str) -> str:
    """Return a number as TOML. The infinities and NaN of `Decimal` have other names there."""
    return printed.replace("Infinity", "inf").replace("NaN", "nan")
