"""Tables of HTML in Markdown documents."""

from __future__ import annotations

from html.parser import HTMLParser

from clearhead.explain.reading._blocks import Block, Paragraph, Table


class _Tables(HTMLParser):
    """Parser that collects the cells of each table."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.first_line = line
        self.blocks: list[Block] = []
        self.rows: list[list[str]] | None = None  # of the table that is open
        self.has_header = False
        self.in_cell = False
        self.line = line

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.rows, self.has_header = [], False
            self.line = self.first_line + self.getpos()[0] - 1
        elif self.rows is not None and tag == "tr":
            self.rows.append([])
        elif self.rows and tag in ("td", "th"):
            self.has_header |= tag == "th" and len(self.rows) == 1
            self.rows[-1].append("")
            self.in_cell = True
        elif self.in_cell and self.rows and tag in ("sub", "sup"):
            self.rows[-1][-1] += "_{" if tag == "sub" else "^{"

    def handle_endtag(self, tag: str) -> None:
        if self.in_cell and self.rows and tag in ("sub", "sup"):
            self.rows[-1][-1] += "}"
        elif tag in ("td", "th", "tr"):
            self.in_cell = False
        elif tag == "table":
            self.end_table()

    def handle_data(self, data: str) -> None:
        if self.in_cell and self.rows:
            self.rows[-1][-1] += data
        elif self.rows is None and any(letter.isalnum() for letter in data):
            self.blocks.append(Paragraph(self.first_line + self.getpos()[0] - 1, data.strip()))

    def end_table(self) -> None:
        """Add the open table."""
        rows = tuple(tuple(cell.strip() for cell in row) for row in self.rows or () if row)
        if rows:
            self.blocks.append(Table(self.line, rows, has_header=self.has_header))
        self.rows, self.in_cell = None, False


def read_html(text: str, line: int) -> list[Block]:
    """Return the tables of an HTML block that starts on `line`, and the texts around them."""
    parser = _Tables(line)
    parser.feed(text)
    parser.close()
    parser.end_table()
    return parser.blocks
