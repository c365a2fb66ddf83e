"""Blocks of a document: headings, paragraphs and tables, each with the line it starts on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Heading:
    """A heading with its level, 1 for the highest."""

    line: int  # counted from 1
    level: int
    text: str


@dataclass(frozen=True)
class Paragraph:
    """Text or a formula between two tables."""

    line: int
    text: str


@dataclass(frozen=True)
class Table:
    """Rows of cells as printed: a Markdown table, a LaTeX matrix or lines of numbers."""

    line: int
    rows: tuple[tuple[str, ...], ...]
    symbols: tuple[str, ...] = ()  # expressions that the text sets equal to the matrix, such as "Q" and "X W_Q"
    caption: str = ""
    transposed: bool = False  # the text prints the matrix with a transposition sign behind it
    unread: str = ""  # why the matrix cannot be read, for a note
    has_header: bool = False  # the first row is the header that Markdown requires, which may hold numbers


Block = Heading | Paragraph | Table
