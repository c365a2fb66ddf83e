"""Matrices in plain text and code blocks: lines of numbers, with or without brackets and labels."""

from __future__ import annotations

import re

from clearhead.explain.reading._blocks import Block, Paragraph, Table
from clearhead.explain.reading._cells import read_cell
from clearhead.explain.reading._symbols import names_vector

_CALL = re.compile(r"(?:\w{1,20}\.)?(?:array|tensor|Tensor|matrix|asarray)\s*\(")
_NEXT_ROW = re.compile(r"\]\s*[,;]?\s*\[")
_LABEL = re.compile(r"^\s*(?:[-*+]\s+)?([^\[\]=:]{0,80}?)\s*(:=|=|:)\s*(.*)$")
_SIDE = re.compile(r"([^\[\]=:≈\d][^\[\]=:≈]{0,79}?)\s*(?:=|≈)\s*(?=[\[(])")  # a formula between two equals signs
_TUPLE = re.compile(r"(?<=[=≈])(\s*)\((?=[^()A-Za-z]{1,400},)([^()A-Za-z]{2,800})\)")
_EDGES = "[]⎡⎤⎢⎥⎣⎦⎛⎞⎜⎟⎝⎠|│┃,; \t"
_SEPARATORS = re.compile(r"[,;|&\s│]+")
MAX_LINE_LETTERS = 20_000


class _Lines:
    """Reader that groups consecutive lines of numbers into tables."""

    def __init__(self, *, in_code: bool) -> None:
        self.in_code = in_code  # in running text, only bracketed or several rows are a matrix
        self.blocks: list[Block] = []
        self.rows: list[tuple[str, list[str]]] = []
        self.symbol = ""
        self.pending = ""  # name on a line above the first row
        self.header: list[str] = []
        self.line = 0
        self.bracketed = False

    def read(self, text: str, line: int) -> list[Block]:
        header: list[str] = []
        for offset, whole in enumerate(text.splitlines()):
            whole = whole[:MAX_LINE_LETTERS]
            if names_vector(whole.partition("=")[0]):  # other tuples are shapes
                whole = _TUPLE.sub(r"\1[\2]", whole)
            for part in _NEXT_ROW.sub("]\n[", _CALL.sub("", whole)).split("\n"):
                if not self._read_row(part, line + offset, header):
                    self._end()
                    if whole.strip():
                        self.blocks.append(Paragraph(line + offset, whole.strip()))
                    break
            header = re.split(r"\s{2,}|\t", whole.strip()) if not self.rows else []
        self._end()
        return self.blocks

    def _read_row(self, text: str, line: int, header: list[str]) -> bool:
        label, rest, sign = "", text, ""
        if (match := _LABEL.match(text)) and not re.match(r"[\d.]", match[1].strip() or "x"):
            label, sign, rest = match[1].strip(" *`$"), match[2], match[3]
            if sign != ":" and (side := _SIDE.match(rest)):
                label, rest = f"{label} = {side[1].strip()}", rest[side.end() :]
        opens, closes = "[[" in rest.replace(" ", ""), re.search(r"\]\s*\]|\]\s*\)", rest)
        cells = _cells(rest)
        if not cells and not sign:
            label, cells = _labeled_cells(text)
        if not cells:
            is_opening = bool(label) and sign in ("=", ":=") and not rest.strip(_EDGES + "(")
            self.pending = label if is_opening else self.pending if not text.strip(_EDGES + "(") else ""
            return False
        names_matrix = sign in ("=", ":=") or (sign == ":" and opens)
        if self.rows and (opens or names_matrix or len(self.rows[0][1]) != len(cells)):
            self._end()
        if not self.rows:
            self.line, self.symbol, self.bracketed = line, label if names_matrix else self.pending, "[" in rest
            self.pending = ""
            self.header = header if len(header) in (len(cells), len(cells) + 1) and label else []
            if self.header and self.blocks and isinstance(self.blocks[-1], Paragraph):
                self.blocks.pop()
        self.rows.append(("" if names_matrix else label, cells))
        if closes:
            self._end()
        return True

    def _end(self) -> None:
        rows, self.rows = self.rows, []
        if not rows:
            return
        if len(rows) > 1 and rows[0][0] and not any(label for label, _ in rows[1:]):
            self.symbol, rows[0] = rows[0][0], ("", rows[0][1])
        width = len(rows[0][1])
        enough = len(rows) > 1 or (bool(self.symbol) and self.bracketed and width > 1)
        if not self.in_code:
            enough = enough and self.bracketed and width > 1
        if not enough or (width == 1 and not self.bracketed):
            self.blocks.append(Paragraph(self.line, " ".join([self.symbol, *(label for label, _ in rows)]).strip()))
            return
        labeled = any(label for label, _ in rows)
        cells = [tuple([label, *row] if labeled else row) for label, row in rows]
        if self.header:
            header = self.header if len(self.header) == len(cells[0]) else ["", *self.header]
            cells.insert(0, tuple(header))
        symbols = tuple(side.strip() for side in self.symbol.split("=") if side.strip())
        self.blocks.append(Table(self.line, tuple(cells), symbols))


def read_lines(text: str, line: int, *, in_code: bool) -> list[Block]:
    """Return the matrices and the other lines of a plain text that starts on `line`."""
    return _Lines(in_code=in_code).read(text, line)


def _cells(text: str) -> list[str]:
    """Return the numbers of a line, or an empty list if it has anything else."""
    inner = re.sub(r"\s*,?\s*dtype\s*=\s*[\w.]+\s*\)?\s*$|\)\s*$", "", text).strip(_EDGES)
    parts = [part for part in _SEPARATORS.split(inner) if part]
    if (
        not parts
        or any(read_cell(part) is None for part in parts)
        or not any(re.search(r"[\d∞_]", part) for part in parts)
    ):
        return []
    return parts


def _labeled_cells(text: str) -> tuple[str, list[str]]:
    """Return the label in front of at least two numbers, and the numbers."""
    parts = [part for part in _SEPARATORS.split(text.strip(_EDGES)) if part]
    count = 0
    while count < len(parts) and read_cell(parts[-1 - count]) not in (None, "_"):
        count += 1
    label = parts[: len(parts) - count]
    if count < 2 or not label or len(label) > 4:
        return "", []
    return " ".join(label), parts[len(parts) - count :]
