"""Surroundings of each matrix: what its symbol, labels, caption, paragraphs and headings say about it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from clearhead.explain.reading._blocks import Block, Heading, Paragraph, Table
from clearhead.explain.reading._grids import Grid, read_grids
from clearhead.explain.reading._markup import plain_text
from clearhead.explain.reading._symbols import Meaning, merge, read_equation, read_row_labels, read_vector_symbol
from clearhead.explain.reading._wording import describe, head_index, read_name

_CAPTION = re.compile(r"\s*(?:[*_]{1,3})?\s*(?:Table|Tab\.|Matrix|Figure|Fig\.|Eq\.|:)\s*\(?\d{0,3}", re.IGNORECASE)
_TABLE = re.compile(r"\W*(?:Table|Tab\.)\s*\d", re.IGNORECASE)
_EMPHASIZED = re.compile(r"\s*(?:\*(?!\*).*\*|_.*_)\s*", re.DOTALL)
_ABOVE, _BELOW = re.compile(r"\babove\b", re.IGNORECASE), re.compile(r"\b(?:below|following)\b|:\s*$", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.:;!?])\s+(?=[A-Z$*\\(])")
_SCALING = re.compile(r"√|\\sqrt|\bdivid|\bscal(?:ed|ing)\b", re.IGNORECASE)

MAX_LABEL_LETTERS = 200


@dataclass(frozen=True)
class MatrixContext:
    """A matrix with the steps and the head that its surroundings name."""

    grid: Grid
    steps: tuple[str, ...]  # candidates, the likeliest first; empty if nothing names the matrix
    head: int | None  # as printed
    transposed: bool
    description: str  # nearest symbol, caption, sentence or heading, for messages
    mentions_scaling: bool
    is_named: bool  # by a symbol, labels, a caption or an equation, and not only by a heading or a sentence
    row: int | None = None  # token of a single vector, as printed


@dataclass(frozen=True)
class Unreadable:
    """A table of numbers with a cell that is not a number."""

    line: int
    reason: str


def read_contexts(blocks: list[Block]) -> Iterator[MatrixContext | Unreadable]:
    """Yield each matrix of a document with its context, in order."""
    headings: list[Heading] = []
    before: list[Paragraph] = []  # of the section; those before a table count for the table that follows it directly
    has_table = False
    captions_above = _captions_are_above(blocks)
    for position, block in enumerate(blocks):
        following = blocks[position + 1] if position + 1 < len(blocks) else None
        if isinstance(block, Heading):
            headings = [*(heading for heading in headings if heading.level < block.level), block]
            before, has_table = [], False
        elif isinstance(block, Paragraph):
            follows_table = position > 0 and isinstance(blocks[position - 1], Table)
            if not (follows_table and _is_caption_below(block, captions_above)):
                before = [block] if has_table else [*before, block]
                has_table = False
        else:
            caption = block.caption
            if captions_above and before and not has_table and _CAPTION.match(before[-1].text):
                caption = before[-1].text
            if isinstance(following, Paragraph) and _is_caption_below(following, captions_above):
                caption = caption or following.text
            try:
                for grid in read_grids(block):
                    yield _context(grid, caption, before, headings)
            except ValueError as error:
                yield Unreadable(block.line, str(error))
            has_table = True


def _captions_are_above(blocks: list[Block]) -> bool:
    """Return whether captions such as "Table 1" stand before their tables, by those with a table on one side only."""
    votes = 0
    for position, block in enumerate(blocks):
        if isinstance(block, Paragraph) and _TABLE.match(block.text):
            before, after = (
                0 <= index < len(blocks) and isinstance(neighbor := blocks[index], Table) and neighbor.has_header
                for index in (position - 1, position + 1)
            )
            votes += after - before
    return votes > 0


def _is_caption_below(paragraph: Paragraph, captions_above: bool) -> bool:
    text = paragraph.text
    if _ABOVE.search(text) and len(text) < 400:
        return True
    if captions_above or _BELOW.search(text):
        return False
    return bool(_CAPTION.match(text) or _EMPHASIZED.fullmatch(text)) and len(text) < 400


def _context(grid: Grid, caption: str, before: list[Paragraph], headings: list[Heading]) -> MatrixContext:
    direct, texts = _texts(caption, before, headings)
    if 1 in grid.shape and grid.symbols and (vector := read_vector_symbol(grid.symbols[0])) is not None:
        return _vector_context(grid, vector, texts)
    evidence = [(text, read_name(text)) for text in grid.symbols]
    labels = (", ".join(grid.rows[:3]), read_row_labels(grid.rows, grid.columns))
    evidence += [(text, describe(text)) for text in texts]
    # rows x_1, x_2, … name the tokens of any matrix: a label, a caption and the nearest heading are stronger
    is_weak = labels[1] is not None and labels[1].steps == ("input",)
    evidence.insert(len(grid.symbols) + (direct + bool(headings) if is_weak else 0), labels)
    meaning = merge([part for _, part in evidence]) or Meaning(())
    if meaning.steps == ("mask",) and grid.symbols:  # M may also be the memory
        words = [part for _, part in evidence[len(grid.symbols) :] if part is not None]
        meaning = words[0] if words and words[0].steps == ("memory",) else meaning
    heads = [part.head for _, part in evidence[: len(grid.symbols)] if part is not None]
    heads += [head_index(plain_text(text)) for text in texts]
    head = next((head for head in heads if head is not None), meaning.head)
    naming = [text for text, part in evidence if part is not None and set(part.steps) & set(meaning.steps)]
    description = plain_text(next(iter([*naming, *texts]), "")).strip("&= ")
    return MatrixContext(
        grid,
        meaning.steps,
        head,
        meaning.transposed != grid.transposed,
        description,
        any(_SCALING.search(text) for text in [*grid.symbols, *texts[:4]]),
        any(part is not None for _, part in evidence[: len(grid.symbols) + 1 + direct]),
    )


def _vector_context(grid: Grid, vector: tuple[Meaning, int], texts: list[str]) -> MatrixContext:
    """Return the context of one token's vector, printed as a row or a column."""
    meaning, row = vector
    heads = [head_index(plain_text(text)) for text in texts]
    head = next((head for head in heads if head is not None), None)
    upright = grid.transpose() if grid.shape[0] > 1 else grid
    upright = replace(upright, rows=(), columns=())
    is_scaled = any(_SCALING.search(text) for text in grid.symbols)
    return MatrixContext(upright, meaning.steps, head, False, plain_text(grid.symbols[0]), is_scaled, True, row)


def _texts(caption: str, before: list[Paragraph], headings: list[Heading]) -> tuple[int, list[str]]:
    """Return the texts that may name a matrix, the most reliable first, and how many of them are about it alone.

    Equations and labels are written for the matrix, and a heading for its section. A sentence often names other
    matrices too.
    """
    near = [paragraph.text.strip() for paragraph in reversed(before[-3:])]
    equations = [text for text in near if read_equation(text)]
    labels = [_SENTENCE_END.split(text)[-1] for text in near if text.endswith(":") or not text.endswith(".")]
    short = [text for text in [*labels[:1], *equations] if len(text) <= MAX_LABEL_LETTERS]
    sections = [heading.text for heading in reversed(headings)]
    sentences = [part for text in near[:2] for part in (_SENTENCE_END.split(text)[-1], text)]
    direct = [text for text in dict.fromkeys([caption, *short]) if text]
    return len(direct), list(dict.fromkeys([*direct, *sections[:1], *sentences, *sections[1:]]))
