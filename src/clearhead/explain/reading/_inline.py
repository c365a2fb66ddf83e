"""Matrices inside sentences, such as "so that Q = X W_Q = [[1, 0], [2, 2]] and q_2 = (2, 2)"."""

from __future__ import annotations

import re

from clearhead.explain.reading._blocks import Block, Paragraph, Table
from clearhead.explain.reading._markup import plain_text
from clearhead.explain.reading._symbols import names_vector, read_vector_symbol
from clearhead.explain.reading._wording import read_name

_ROW = r"\[[^\[\]A-Za-z]{1,2000}\]"
_LITERAL = re.compile(
    rf"\[\s*{_ROW}(?:\s*[,;]?\s*{_ROW}){{0,200}}\s*,?\s*\]"
    r"|(?<=[=≈])\s*(?:\[(?=[^\[\]()A-Za-z]{1,400}[,;\s])[^\[\]()A-Za-z]{2,800}\]|\((?=[^()A-Za-z]{1,400},)[^()A-Za-z]{2,800}\))"
)
_CLAUSE = re.compile(r"[.;:,]\s|\$|\\[()]|\b(?:and|so|get|is|are|that|thus|then|have|gives|gives us)\b", re.IGNORECASE)
_EQUALS = re.compile(r"=|≈|\\approx\b")
_PLAIN_LINE = re.compile(r"\s*(?:[-*+]\s+)?[^\s=:]{0,30}(?:\s*[=:][^=]{0,60}){0,2}[=:]?\s*")


def is_sentence(text: str) -> bool:
    """Return whether a paragraph prints a matrix between words, and not on a line that holds nothing else."""
    for line in text.splitlines():
        literals = list(_LITERAL.finditer(line))
        if not literals:
            continue
        before, after = line[: literals[0].start()], line[literals[-1].end() :]
        if len(literals) > 1 or "$" in before or after.strip(" .,;*`") or not _PLAIN_LINE.fullmatch(before):
            return True
    return False


def read_sentences(text: str, line: int) -> list[Block]:
    """Return the matrices of a paragraph that starts on `line`, each after the words before it."""
    blocks: list[Block] = []
    for offset, whole in enumerate(text.splitlines()):
        position = 0
        for match in _LITERAL.finditer(whole):
            before = whole[position : match.start()]
            if match[0].lstrip().startswith("(") and not names_vector(_sides(before)[0]):
                continue  # a shape
            if re.search(r"\w", before):
                blocks.append(Paragraph(line + offset, before.strip()))
            blocks.append(_table(before, match[0], line + offset))
            position = match.end()
        if re.search(r"\w", whole[position:]):
            blocks.append(Paragraph(line + offset, whole[position:].strip()))
    return blocks


def _table(before: str, literal: str, line: int) -> Table:
    """Return a matrix with the sides of its equation. Without a readable name, the matrix is not read."""
    inner = literal.strip()[1:-1]
    rows = re.findall(_ROW, inner) or [f"[{inner}]"]
    cells = tuple(tuple(part for part in re.split(r"[,;\s]+", row[1:-1].strip()) if part) for row in rows)
    sides = _sides(before)
    symbols = tuple(side for side in sides[:-1] if read_name(side) or read_vector_symbol(side))
    if not symbols or sides[-1]:
        return Table(
            line, cells, unread=f"{literal.strip()[:40]} stands in a sentence, without a known symbol before it"
        )
    return Table(line, cells, symbols)


def _sides(before: str) -> list[str]:
    """Return the sides of the equation at the end of a text. The last one is empty after an equals sign."""
    return [plain_text(side).strip(" *`-") for side in _EQUALS.split(_CLAUSE.split(before)[-1])]
