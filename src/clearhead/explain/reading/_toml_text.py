"""TOML text of drafts: strings, matrices with their printed digits, and comments of one line."""

from __future__ import annotations

import json
from collections.abc import Sequence

from clearhead._utils.text import visible_text
from clearhead.explain._printed_matrix import BLANK

MAX_COMMENT_LETTERS = 100
Cells = Sequence[Sequence[str]]


def toml_string(text: str) -> str:
    """Return a text in quotes. Invisible characters are written out as escapes."""
    return json.dumps(visible_text(text), ensure_ascii=False)


def toml_comment(text: str) -> str:
    """Return a comment line."""
    line = visible_text(text)
    return f"# {line if len(line) <= MAX_COMMENT_LETTERS else f'{line[: MAX_COMMENT_LETTERS - 1]}…'}"


def toml_row(cells: Sequence[str]) -> str:
    """Return one row."""
    return f"[{', '.join(_cell(cell) for cell in cells)}]"


def toml_matrix(cells: Cells, indent: str = "") -> str:
    """Return a matrix with one row on each line."""
    rows = "".join(f"{indent}  {toml_row(row)},\n" for row in cells)
    return f"[\n{rows}{indent}]"


def toml_matrices(matrices: Sequence[Cells | None]) -> str:
    """Return one matrix, or a list of one matrix for each head. None stands for a head that is not printed."""
    if len(matrices) == 1 and matrices[0] is not None:
        return toml_matrix(matrices[0])
    entries = (f'"{BLANK}"' if cells is None else toml_matrix(cells, "  ") for cells in matrices)
    return "[\n" + "".join(f"  {entry},\n" for entry in entries) + "]"


def _cell(cell: str) -> str:
    return f'"{BLANK}"' if cell == BLANK else cell
