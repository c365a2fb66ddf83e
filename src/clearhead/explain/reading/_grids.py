"""Grids of cells: numbers separated from row labels, column labels and sums."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from clearhead.explain._printed_matrix import BLANK
from clearhead.explain.reading._blocks import Table
from clearhead.explain.reading._cells import read_cell, read_vector
from clearhead.explain.reading._exact import is_exact
from clearhead.explain.reading._markup import plain_text
from clearhead.explain.reading._wording import read_name

MAX_CELLS = 2**16  # of one matrix; a larger one is not a worked example
_SUM = re.compile(r"(?:row |column )?(?:sums?|totals?|σ|∑)(?: of (?:the )?(?:row|column)s?)?", re.IGNORECASE)
_CORNER = re.compile(
    r"(?:tokens?|words?|positions?|pos\.?|rows?|i|#|no\.?|index|query ?[\\/↓→]* ?keys?)", re.IGNORECASE
)


@dataclass(frozen=True)
class Grid:
    """A matrix of numbers as TOML texts, with the labels around it."""

    line: int
    cells: tuple[tuple[str, ...], ...]
    rows: tuple[str, ...] = ()  # labels; empty without labels
    columns: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    caption: str = ""
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.cells), len(self.cells[0])

    @property
    def is_blank(self) -> bool:
        return all(cell == BLANK for row in self.cells for cell in row)

    @property
    def has_blanks(self) -> bool:
        return any(cell == BLANK for row in self.cells for cell in row)

    @property
    def is_placeholder(self) -> bool:
        """True if every cell is 0 or blank, as in a text that leaves the numbers out."""
        return all(cell == BLANK or set(cell) <= set("-0.") for row in self.cells for cell in row)

    def without_values(self) -> Grid:
        """Return the matrix with all cells blank."""
        return replace(self, cells=tuple((BLANK,) * len(row) for row in self.cells))

    def transpose(self) -> Grid:
        """Return the transposed matrix."""
        return replace(self, cells=tuple(zip(*self.cells, strict=True)), rows=self.columns, columns=self.rows)


def read_grids(table: Table) -> Iterator[Grid]:
    """Yield the matrices of a table: one, one for each column of vectors, or none if it has other contents.

    Raises:
        ValueError: a table of numbers has a cell that is not a number, or cannot be read.
    """
    if table.unread:
        raise ValueError(table.unread)
    rows = [list(row) for row in table.rows if any(cell.strip() for cell in row)]
    if table.has_header and table.rows and not any(plain_text(cell) for cell in table.rows[0]):
        rows = [list(row) for row in table.rows[1:]]
    if not rows or len(rows[0]) * len(rows) > MAX_CELLS:
        return
    width = max(len(row) for row in rows)
    if any(len(row) != width for row in rows[1:]):
        return
    rows[0] = [""] * (width - len(rows[0])) + rows[0]
    if vectors := list(_vector_columns(table, rows)):
        yield from vectors
        return
    yield from _number_grid(table, rows)


def _number_grid(table: Table, rows: list[list[str]]) -> Iterator[Grid]:
    columns: list[str] = []
    symbols = list(table.symbols)
    if len(rows) > 1 and _is_header(rows[0], rows[1:], required=table.has_header):
        columns, rows = [plain_text(cell) for cell in rows[0]], rows[1:]
    labels: list[str] = []
    if len(rows[0]) > 1 and _has_labels(columns, [row[0] for row in rows], table.has_header):
        labels, rows = [plain_text(row[0]) for row in rows], [row[1:] for row in rows]
        if columns:
            symbols, columns = [*symbols, columns[0]] if columns[0] else symbols, columns[1:]
    if columns and len(columns) > 1 and _SUM.fullmatch(columns[-1]):
        rows, columns = [row[:-1] for row in rows], columns[:-1]
    if len(labels) > 1 and _SUM.fullmatch(labels[-1]):
        rows, labels = rows[:-1], labels[:-1]
    cells = [[read_cell(cell) for cell in row] for row in rows]
    written = [cell for row in cells for cell in row if cell != BLANK]
    unknown = sum(cell is None for cell in written)
    is_symbolic = unknown == len(written) or not any(is_exact(cell) for row in rows for cell in row)
    if not cells or not cells[0] or (is_symbolic and unknown * 2 > len(written)):
        return
    for row, texts in zip(cells, rows, strict=True):
        for cell, text in zip(row, texts, strict=True):
            if cell is None:
                raise ValueError(f"cell {plain_text(text)[:40]!r} is not a number")
    yield Grid(
        table.line,
        tuple(tuple(cell or BLANK for cell in row) for row in cells),
        tuple(labels),
        tuple(columns),
        tuple(symbols),
        table.caption,
        table.transposed,
    )


def _is_header(header: list[str], body: list[list[str]], *, required: bool) -> bool:
    """Return whether the first row holds labels, or counts the columns from 0 or 1."""
    cells = [read_cell(cell) for cell in header]
    written = [cell for cell in cells if cell != BLANK]
    if any(is_exact(cell) for cell in header) and not required:
        return False  # a number that cannot be read, not a label
    if all(cell == BLANK and text.strip() for cell, text in zip(cells[1:], header[1:], strict=True)):
        return False  # blanks written as "_" or "…" are cells; Markdown leaves the cells of an unused header empty
    has_labels = any(cell is None for cell in written[1:])
    counted = len(cells) > 2 and cells[0] is None and _counts([plain_text(cell) for cell in header[1:]])
    if has_labels or (counted and (required or read_name(header[0]) is not None)):
        return True
    if written and all(cell is None for cell in written):
        return len(cells) > 1 or len(body) > 0
    texts = [plain_text(cell) for cell in header]
    if texts[0] == "" and _counts(texts[1:]):
        return True
    # without a column of labels, whole numbers below 1, 2, 3 make that row a row of the matrix
    return required and _counts(texts) and any("." in cell for row in body for cell in row)


def _counts(texts: list[str]) -> bool:
    """Return whether texts are 1, 2, 3, … or 0, 1, 2, …."""
    return bool(texts) and texts in (
        [str(index) for index in range(len(texts))],
        [str(index) for index in range(1, len(texts) + 1)],
    )


def _has_labels(columns: list[str], first: list[str], has_header: bool) -> bool:
    """Return whether the first column holds labels of the rows."""
    cells = [read_cell(cell) for cell in first]
    written = [cell for cell in cells if cell != BLANK]
    if any(is_exact(cell) for cell in first):
        return False
    if written and sum(cell is None for cell in written) * 2 > len(written):
        return True
    if not columns:
        return False
    corner_names_labels = read_cell(columns[0]) is None and (
        bool(_CORNER.fullmatch(columns[0])) or _counts([plain_text(cell) for cell in first])
    )
    corner_is_blank = has_header and columns[0] == "" and all(columns[1:])
    return corner_names_labels or corner_is_blank


def _vector_columns(table: Table, rows: list[list[str]]) -> Iterator[Grid]:
    """Yield a matrix for each column whose cells are vectors, such as the column "q" with the cells `[1, 0]`."""
    if len(rows) < 2:
        return
    header, body = rows[0], rows[1:]
    labels = tuple(plain_text(row[0]) for row in body)
    for index, name in enumerate(header):
        vectors = [read_vector(row[index]) for row in body]
        lengths = {0 if vector is None else len(vector) for vector in vectors}
        if len(lengths) != 1 or lengths == {0}:
            continue
        cells = tuple(tuple(vector or ()) for vector in vectors)
        symbol = plain_text(name)
        symbols = (symbol.upper() if len(symbol) == 1 else symbol,)
        has_labels = index > 0 and all(read_vector(row[0]) is None and read_cell(row[0]) is None for row in body)
        yield Grid(table.line, cells, labels if has_labels else (), (), symbols, table.caption)
