"""Reader for sentences with dependency trees in CoNLL-U, the format of Universal Dependencies."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from clearhead._utils.bounded_reads import numbered_lines

_COLUMN_COUNT = 10  # ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC
_NOT_A_WORD = re.compile(r"[0-9]+[-.][0-9]+")  # 1-2 is a multiword token, 1.1 an empty node


@dataclass(frozen=True)
class Sentence:
    """Words of a sentence and their dependency tree.

    Attributes:
        words: the words.
        heads: index of each word's head, from 0; −1 for the root.
        relations: relation of each word to its head, without subtype: "nsubj", not "nsubj:pass".
    """

    words: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]

    def __post_init__(self) -> None:
        lengths = (len(self.words), len(self.heads), len(self.relations))
        if len(set(lengths)) > 1:
            raise ValueError(
                f"Sentence: words, heads and relations have {lengths} entries; expected one of each per word"
            )
        for word, head in enumerate(self.heads):
            if not -1 <= head < len(self.words) or head == word:
                raise ValueError(
                    f"Sentence: the head of word {word} is {head}; expected another of the {len(self.words)} words, or"
                    " -1 for the root"
                )


def read_conllu(path: str | os.PathLike[str]) -> list[Sentence]:
    """Return the sentences of a CoNLL-U file or a .gz file.

    Trees connect the numbered words. Lines of multiword tokens (1-2) and empty nodes (1.1) are skipped.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    sentences: list[Sentence] = []
    rows: list[_Row] = []
    for line_number, line in numbered_lines(path):
        if not line.strip():
            sentences += _sentence(path, rows)
            rows = []
        elif not line.startswith("#"):
            rows += _row(f"{path}, line {line_number}", line_number, line, expected_id=len(rows) + 1)
    return sentences + _sentence(path, rows)  # the last sentence may lack the final empty line


@dataclass(frozen=True)
class _Row:
    """Line of one word."""

    line: int
    word: str
    head: int  # counted from 1, as in the file; 0 for the root
    relation: str


def _row(location: str, line_number: int, line: str, expected_id: int) -> list[_Row]:
    """Return the word on a line; an empty list for a multiword token or an empty node."""
    columns = line.split("\t")
    if len(columns) != _COLUMN_COUNT:
        raise ValueError(f"{location}: has {len(columns)} columns; expected {_COLUMN_COUNT}, separated by tabs")
    identifier, word, head, relation = columns[0], columns[1], columns[6], columns[7].split(":")[0]
    if _NOT_A_WORD.fullmatch(identifier):
        return []
    if identifier != str(expected_id):
        raise ValueError(f"{location}: ID is {identifier!r}; expected {expected_id}, the sentence's next word")
    if not head.isdecimal():
        raise ValueError(f"{location}: HEAD is {head!r}; expected the number of a word, or 0 for the root")
    if relation in ("", "_"):
        raise ValueError(f"{location}: DEPREL is {columns[7]!r}; expected a relation such as nsubj")
    return [_Row(line_number, word, int(head), relation)]


def _sentence(path: str | os.PathLike[str], rows: list[_Row]) -> list[Sentence]:
    """Return the sentence on these lines; an empty list without lines, as between two empty lines."""
    for word_id, row in enumerate(rows, start=1):
        if row.head > len(rows) or row.head == word_id:
            raise ValueError(
                f"{path}, line {row.line}: HEAD is {row.head}; expected another of the sentence's {len(rows)} words,"
                " or 0 for the root"
            )
    if not rows:
        return []
    words, heads, relations = zip(*((row.word, row.head - 1, row.relation) for row in rows), strict=True)
    return [Sentence(words, heads, relations)]
