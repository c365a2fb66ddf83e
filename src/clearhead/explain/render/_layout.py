"""Matrices as rows of texts, shortened in the middle if they are too large to be shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from clearhead._utils.text import count_noun
from clearhead.explain.render.wording import NumberFormat, cell_shades, origin_text
from clearhead.explain.steps import Axis, Operand, Step, Trace

MAX_CELLS = 40_000  # of one document; a terminal, a browser or LaTeX takes seconds for more
_MAX_ROWS = (40, 24, 12)  # rows or columns of a matrix; the first number that keeps a document below MAX_CELLS
HIDDEN = "·"  # a weight that is 0 because of the mask
GAP = "…"

Matrix = Step | Operand
Cell = TypeVar("Cell")


def new_matrices(step: Step) -> list[Matrix]:
    """Return the matrices that a step introduces: its learned matrices or mask, then its result."""
    return [*(operand for operand in step.operands if operand.new), step]


@dataclass(frozen=True)
class Entries:
    """Indices of the rows or columns that are shown. A negative entry -k stands for k that are left out."""

    shown: tuple[int, ...]

    @property
    def left_out(self) -> int:
        return sum(-entry for entry in self.shown if entry < 0)

    @property
    def indices(self) -> list[int]:
        return [entry for entry in self.shown if entry >= 0]


@dataclass(frozen=True)
class View:
    """A matrix as it is shown: labels, texts of cells, and marks of cells."""

    symbol: str
    latex: str
    caption: str  # shape, origin and what is left out
    shape: str
    origin: str
    rows: Entries
    columns: Entries
    row_labels: list[str]
    column_labels: list[str]
    cells: list[list[str]]
    shades: list[list[float]]  # from -1 to 1; NaN for a cell without a number
    sums: list[str] = field(default_factory=list)  # of rows, for weights

    def is_hidden(self, row: int, column: int) -> bool:
        """Return whether a cell is masked."""
        return self.cells[row][column] in (HIDDEN, "-∞")


class Layout:
    """Choice of the rows and columns that a document shows of every matrix."""

    def __init__(self, trace: Trace, matrices: Callable[[Step], Iterable[Matrix]]) -> None:
        """Choose the largest matrices for which a document is not too large.

        Args:
            trace: the calculation.
            matrices: returns the matrices that a document shows of a step.

        Raises:
            ValueError: if even shortened matrices are too many.
        """
        self.trace = trace
        shown = [matrix for step in trace for matrix in matrices(step)]
        for self._limit in _MAX_ROWS:
            count = sum(self._cell_count(matrix) for matrix in shown)
            if count <= MAX_CELLS:
                return
        raise ValueError(
            f"the calculation has {sum(map(self._cell_count, shown)):,} numbers to show, even with shortened matrices;"
            f" expected at most {MAX_CELLS:,}: choose steps or heads (--step, --head)"
        )

    def _cell_count(self, matrix: Matrix) -> int:
        height, width = matrix.values.shape
        return len(self.entries(matrix.rows, height).shown) * len(self.entries(matrix.columns, width).shown)

    def entries(self, axis: Axis, count: int) -> Entries:
        """Return the rows or columns that are shown of an axis with `count` entries."""
        chosen: Collection[int] = self.trace.visible.get(axis, ())
        if not chosen:
            if count <= self._limit:
                return Entries(tuple(range(count)))
            first = self._limit * 2 // 3
            chosen = {*range(first), *range(count - (self._limit - first), count)}
        shown: list[int] = []
        following = 0
        for index in sorted(index for index in chosen if index < count):
            if index > following:
                shown.append(following - index)
            shown.append(index)
            following = index + 1
        if following < count:
            shown.append(following - count)
        if any(entry == -1 for entry in shown):  # showing one entry takes no more space than leaving it out
            return self._without_single_gaps(shown)
        return Entries(tuple(shown))

    def _without_single_gaps(self, shown: list[int]) -> Entries:
        entries, following = [], 0
        for entry in shown:
            entries.append(following if entry == -1 else entry)
            following = entry + 1 if entry >= 0 else following - entry
        return Entries(tuple(entries))

    def view(self, matrix: Matrix, digits: int) -> View:
        """Return a matrix as it is shown."""
        height, width = matrix.values.shape
        rows, columns = self.entries(matrix.rows, height), self.entries(matrix.columns, width)
        part = matrix.values[rows.indices][:, columns.indices]
        hidden = torch.zeros(part.shape, dtype=torch.bool)
        if matrix.hidden is not None:
            hidden = matrix.hidden[rows.indices][:, columns.indices].cpu()
        form = NumberFormat(matrix.values, digits)
        texts = [
            [HIDDEN if masked else form.plain(cell) for cell, masked in zip(*row, strict=True)]
            for row in zip(part.tolist(), hidden.tolist(), strict=True)
        ]
        shades = cell_shades(torch.where(hidden, -torch.inf, part.double().cpu()))
        gap = [GAP] * len(columns.shown)
        cells = [[*_spread(columns, texts[position], GAP)] if position >= 0 else gap for position in _positions(rows)]
        blank = [math.nan] * len(columns.shown)
        levels = [
            [*_spread(columns, shades[position], math.nan)] if position >= 0 else blank for position in _positions(rows)
        ]
        origin, shape = origin_text(matrix), f"({height}, {width})"
        missing = _left_out(rows, columns)
        return View(
            matrix.symbol,
            matrix.latex_symbol if isinstance(matrix, Step) else matrix.latex,
            f"{shape}: {origin}{f'; {missing}' if missing else ''}",
            shape,
            f"{origin}{f'; {missing}' if missing else ''}",
            rows,
            columns,
            self._labels(matrix.rows, height, rows),
            self._labels(matrix.columns, width, columns),
            cells,
            levels,
            self._sums(matrix, rows, digits),
        )

    def _labels(self, axis: Axis, count: int, entries: Entries) -> list[str]:
        labels = self.trace.labels(axis, count)
        return [labels[entry] if entry >= 0 else f"{GAP} {-entry} more" for entry in entries.shown]

    def _sums(self, matrix: Matrix, rows: Entries, digits: int) -> list[str]:
        """Return the sum of each row of attention weights, over all columns; empty for other matrices."""
        if not isinstance(matrix, Step) or matrix.name != "weights":
            return []
        sums = matrix.values.double().sum(dim=1)
        form = NumberFormat(sums.round(decimals=6)[:, None], digits)
        return [form.plain(round(float(sums[entry]), 6)) if entry >= 0 else GAP for entry in rows.shown]


def _positions(entries: Entries) -> list[int]:
    """Return for each entry its position among those with an index, or -1 for a gap."""
    position, positions = 0, []
    for entry in entries.shown:
        positions.append(position if entry >= 0 else -1)
        position += entry >= 0
    return positions


def _spread(entries: Entries, cells: list[Cell], gap: Cell) -> list[Cell]:
    return [cells[position] if position >= 0 else gap for position in _positions(entries)]


def _left_out(rows: Entries, columns: Entries) -> str:
    parts = [
        count_noun(entries.left_out, noun) for entries, noun in ((rows, "row"), (columns, "column")) if entries.left_out
    ]
    if not parts:
        return ""
    one = rows.left_out + columns.left_out == 1
    return f"{' and '.join(parts)} {'is' if one else 'are'} not shown"
