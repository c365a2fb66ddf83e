"""Search for text along one axis of a stack, across token boundaries."""

from __future__ import annotations

import functools
import unicodedata
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from clearhead.recording import Stack, Tokens

Axis = Literal["queries", "keys"]
MAX_HITS = 1000  # ranges sent to a page
MAX_SEARCH_LETTERS = 200


@dataclass(frozen=True)
class SearchResult:
    """Ranges of tokens that contain a text.

    Attributes:
        ranges: (start, end) of each range of tokens, in order; at most `MAX_HITS`.
        count: number of ranges in the whole text.
    """

    ranges: list[tuple[int, int]]
    count: int


@dataclass(frozen=True)
class _JoinedText:
    """Normalized text of an axis, its parts by token, and the position of each token in it."""

    text: str
    pieces: list[str]
    starts: list[int]
    spaced: bool  # tokens contain the spaces of the text


def find_text(tokens: Tokens, wanted: str) -> SearchResult:
    """Return the ranges of tokens that contain a text. Case, width and the kind of white space do not matter.

    Words that are split into several tokens are matched. If tokens have no spaces, spaces are ignored.
    """
    if len(wanted) > MAX_SEARCH_LETTERS:
        raise ValueError(f"the search text has {len(wanted):,} characters; expected at most {MAX_SEARCH_LETTERS:,}")
    joined = _joined(tokens)
    pattern = _normalized(wanted, joined.spaced)
    ranges: list[tuple[int, int]] = []
    count, start = 0, joined.text.find(pattern) if pattern.strip() else -1
    last = (-1, -1)
    while start >= 0:
        end = start + len(pattern)
        hit = (bisect_right(joined.starts, start) - 1, bisect_right(joined.starts, end - 1))
        if hit != last:  # a token may contain the text several times
            count += 1
            if len(ranges) < MAX_HITS:
                ranges.append(hit)
        last = hit
        start = joined.text.find(pattern, end)
    return SearchResult(ranges, count)


def search_payload(stack: Stack, axis: Axis, wanted: str) -> dict[str, Any]:
    """Return the hits of a search along one axis: at most `MAX_HITS` ranges of tokens, and their total number."""
    if axis not in ("queries", "keys"):
        raise ValueError(f"axis is {axis!r}; expected 'queries' or 'keys'")
    result = find_text(stack.queries if axis == "queries" else stack.keys, wanted)
    return {"axis": axis, "text": wanted, "ranges": [list(hit) for hit in result.ranges], "count": result.count}


def searchable_tokens(tokens: Tokens) -> dict[str, Any]:
    """Return the normalized parts of an axis for a report, whose script searches them as `find_text` does."""
    joined = _joined(tokens)
    return {"pieces": joined.pieces, "spaced": joined.spaced}


@functools.lru_cache(maxsize=4)  # a search of 32,768 tokens then takes a millisecond
def _joined(tokens: Tokens) -> _JoinedText:
    ordinary = [text for text, special in zip(tokens.texts, tokens.special, strict=True) if not special]
    spaced = any(text[:1].isspace() or text[-1:].isspace() for text in ordinary)
    pieces: list[str] = []
    ends_with_space = False
    for index, text in enumerate(tokens.texts):
        piece = _normalized(_without_continuation_mark(tokens, index, text), spaced)
        if ends_with_space:
            piece = piece.removeprefix(" ")
        pieces.append(piece)
        ends_with_space = piece.endswith(" ") if piece else ends_with_space
    starts = [0, *accumulate(map(len, pieces))][: len(pieces)]
    return _JoinedText("".join(pieces), pieces, starts, spaced)


def _without_continuation_mark(tokens: Tokens, index: int, text: str) -> str:
    """Return the text of a token without "##", which WordPiece puts before the later parts of a word."""
    word = tokens.words[index]
    inside = index > 0 and word is not None and tokens.words[index - 1] == word
    return text[2:] if inside and text.startswith("##") else text


def _normalized(text: str, spaced: bool) -> str:
    """Return folded text, with single spaces if tokens contain spaces, and otherwise without spaces.

    `search_text.js` does the same.
    """
    folded = _folded(text)
    if not spaced:
        return "".join(folded.split())
    inner = " ".join(folded.split())
    if not inner:
        return " " if folded else ""
    return f"{' ' if folded[0].isspace() else ''}{inner}{' ' if folded[-1].isspace() else ''}"


@functools.lru_cache(maxsize=4096)  # long texts repeat most of their tokens
def _folded(text: str) -> str:
    """Return text without differences of case and width, by operations that JavaScript has too.

    Each character is folded alone, because the lower case of "Σ" depends on its neighbors.
    """
    if text.isascii():
        return text.lower()
    return "".join(character.upper().lower() for character in unicodedata.normalize("NFKC", text))
