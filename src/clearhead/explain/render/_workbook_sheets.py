"""Sheets of a workbook: matrices one below the other, and references to their cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clearhead._utils.extras import needs_extra
from clearhead._utils.text import visible_text

with needs_extra("explain", "the xlsx format"):
    from openpyxl.cell.cell import Cell
    from openpyxl.formatting.rule import ColorScaleRule
    from openpyxl.styles import Alignment, Font, PatternFill
    from openpyxl.utils import get_column_letter
    from openpyxl.worksheet.worksheet import Worksheet

MINUS_INFINITY = "−∞"  # a text, because a cell cannot contain an infinite number
_LABEL_WIDTH, _CELL_WIDTH = 18, 11  # in letters
_INPUT_FILL = PatternFill("solid", fgColor="FFF4CC")
_INPUT_FONT, _BOLD, _GRAY = Font(color="1F4E9E"), Font(bold=True), Font(color="666666")
_WEIGHT_COLORS = ColorScaleRule("num", 0, "FFFFFF", end_type="num", end_value=1, end_color="6BAED6")

Content = float | str  # a number, a formula that starts with "=", or −∞


@dataclass(frozen=True)
class Block:
    """Cells of one matrix in a sheet."""

    sheet: str
    top: int  # row of the first number, counted from 1
    left: int  # its column
    shape: tuple[int, int]

    def cell(self, row: int, column: int, sheet: str) -> str:
        """Return the reference to a cell, with the name of its sheet if the formula is in another one."""
        return self._prefix(sheet) + self._address(row, column)

    def row(self, row: int, sheet: str) -> str:
        """Return the reference to a row."""
        return self._range((row, 0), (row, self.shape[1] - 1), sheet)

    def column(self, column: int, sheet: str) -> str:
        """Return the reference to a column."""
        return self._range((0, column), (self.shape[0] - 1, column), sheet)

    def _range(self, first: tuple[int, int], last: tuple[int, int], sheet: str) -> str:
        return f"{self._prefix(sheet)}{self._address(*first)}:{self._address(*last)}"

    def _address(self, row: int, column: int) -> str:
        return f"{get_column_letter(self.left + column)}{self.top + row}"

    def _prefix(self, sheet: str) -> str:
        return "" if sheet == self.sheet else f"'{self.sheet}'!"


class MatrixSheet:
    """Sheet to which matrices are added one below the other."""

    def __init__(self, sheet: Worksheet, digits: int) -> None:
        self._sheet, self._format = sheet, f"0.{'0' * digits}" if digits else "0"
        self._next_row = 1
        sheet.column_dimensions["A"].width = _LABEL_WIDTH
        sheet.freeze_panes = "B1"

    @property
    def name(self) -> str:
        return self._sheet.title

    def add_text(self, text: str, font: Font | None = None) -> None:
        """Add a line of text."""
        self._write_text(self._next_row, 1, text).font = font or Font()
        self._next_row += 1

    def skip_row(self) -> None:
        """Leave a row empty."""
        self._next_row += 1

    def add_heading(self, text: str) -> None:
        self.add_text(text, _BOLD)

    def add_matrix(
        self,
        heading: str,
        caption: str,
        rows: Sequence[str],
        columns: Sequence[str],
        content: Callable[[int, int], Content],
        *,
        is_input: bool = False,
        is_weights: bool = False,
    ) -> Block:
        """Add a matrix with labels.

        Args:
            heading: first line.
            caption: second line, such as the formula and the shape.
            rows: labels of the rows.
            columns: labels of the columns.
            content: returns the content of a cell of the matrix.
            is_input: mark the cells as numbers to change.
            is_weights: color the cells from 0 to 1, and add the sum of each row.
        """
        self.add_heading(heading)
        self.add_text(caption, _GRAY)
        block = Block(self.name, self._next_row + 1, 2, (len(rows), len(columns)))
        for column, label in enumerate(columns):
            cell = self._write_text(self._next_row, block.left + column, label)
            cell.font, cell.alignment = _GRAY, Alignment(horizontal="right")
            self._sheet.column_dimensions[get_column_letter(block.left + column)].width = _CELL_WIDTH
        for row, label in enumerate(rows):
            self._write_text(block.top + row, 1, label)
            for column in range(len(columns)):
                self._write(block.top + row, block.left + column, content(row, column), is_input)
        if is_weights:
            self._add_sums(block)
        self._next_row = block.top + len(rows) + 1
        return block

    def _add_sums(self, block: Block) -> None:
        (height, width), column = block.shape, block.left + block.shape[1]
        cell = self._write_text(block.top - 1, column, "sum")
        cell.font, cell.alignment = _GRAY, Alignment(horizontal="right")
        for row in range(height):
            self._write(block.top + row, column, f"=SUM({block.row(row, self.name)})", is_input=False)
        last = f"{get_column_letter(block.left + width - 1)}{block.top + height - 1}"
        self._sheet.conditional_formatting.add(f"{block.cell(0, 0, self.name)}:{last}", _WEIGHT_COLORS)

    def _write(self, row: int, column: int, content: Content, is_input: bool) -> None:
        cell = self._sheet.cell(row, column, content)
        cell.number_format, cell.alignment = self._format, Alignment(horizontal="right")
        if is_input:
            cell.fill, cell.font = _INPUT_FILL, _INPUT_FONT

    def _write_text(self, row: int, column: int, text: str) -> Cell:
        cell = self._sheet.cell(row, column, visible_text(text))
        cell.data_type = "s"  # a token that starts with "=" is not a formula
        assert isinstance(cell, Cell)  # not a merged one
        return cell
