"""Parallel text: `read_pairs` reads it from files, `prepare_corpus` normalizes it for training.

The notes of a corpus name everything that was left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from clearhead._utils.bounded_reads import numbered_lines
from clearhead.translation.normalizer import Normalizer


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


@dataclass(frozen=True)
class Corpus:
    """Pairs in the order of their files, and a sentence on each kind that was left out: how many, and the first."""

    pairs: tuple[Pair, ...]
    notes: tuple[str, ...]


def read_pairs(paths: Sequence[str]) -> Corpus:
    """Return the pairs of all `paths`, as they are written there. Pairs with an empty side are left out, and noted.

    A path is one file of two columns with a tab between them ("tatoeba.tsv"), or two files with a comma between
    them, a sentence a line ("train.en,train.ja"). Each may be packed as .gz.
    """
    if isinstance(paths, str):
        raise TypeError(f"paths is the string {paths!r}; expected a list of such")
    pairs: list[Pair] = []
    notes: list[str] = []
    for path in paths:
        empty_lines: list[int] = []
        name, numbered_pairs = _numbered_pairs(path)
        for line_number, pair in numbered_pairs:
            if pair.source.strip() and pair.target.strip():
                pairs.append(pair)
            else:
                empty_lines.append(line_number)
        if empty_lines:
            left_out = f"{_count(len(empty_lines), 'pair')} with an empty side left out"
            notes.append(f"{name}: {left_out} (the first in line {empty_lines[0]})")
    if not pairs:
        raise ValueError(f"{'; '.join(paths) or 'paths'}: no pairs; expected at least one with text on both sides")
    return Corpus(tuple(pairs), tuple(notes))


def prepare_corpus(corpus: Corpus, source: Normalizer, target: Normalizer, without: Iterable[Pair] = ()) -> Corpus:
    """Normalize a corpus; keep each pair once, and none of `without`: a validation set that training is not to see.

    `without` is normalized in the same way before it is compared. A pair counts for the first reason that holds.
    """

    def normalize(pair: Pair) -> Pair:
        return Pair(source(pair.source), target(pair.target))

    held_out = {normalize(pair) for pair in without}
    unique_pairs: dict[Pair, None] = {}  # a set that remembers the order
    left_out: dict[str, list[Pair]] = {
        "with a side that normalising leaves empty": [],
        "that are held out for validation": [],
        "that stand further up already": [],
    }
    empty, validation, repeated = left_out.values()
    for original in corpus.pairs:
        pair = normalize(original)
        if not (pair.source and pair.target):
            empty.append(original)
        elif pair in held_out:
            validation.append(original)
        elif pair in unique_pairs:
            repeated.append(original)
        else:
            unique_pairs[pair] = None
    notes = [
        f"{_count(len(pairs), 'pair')} {reason} left out (the first: {pairs[0].source!r})"
        for reason, pairs in left_out.items()
        if pairs
    ]
    if not unique_pairs:
        raise ValueError(f"no pairs remain of {len(corpus.pairs)}: {'; '.join(notes) or 'there were none'}")
    return Corpus(tuple(unique_pairs), (*corpus.notes, *notes))


def _numbered_pairs(path: str) -> tuple[str, Iterator[tuple[int, Pair]]]:
    """Return the file to name in notes, and the pairs with the numbers of their lines."""
    files = [path] if Path(path).exists() else path.split(",")  # a comma may also be part of a file's name
    if len(files) > 2:
        raise ValueError(
            f"{path}: {len(files)} files with commas between them; expected two (source,target), or one of two columns"
        )
    for file in files:
        if not file or not Path(file).exists():
            raise FileNotFoundError(f"{file or repr(path)}: there is no such file")
        if Path(file).is_dir():
            raise ValueError(f"{file}: a folder; expected a file")
    return files[0], _columns(path) if len(files) == 1 else _side_by_side(*files)


def _columns(path: str) -> Iterator[tuple[int, Pair]]:
    for line_number, line in numbered_lines(path):
        columns = line.split("\t")
        if len(columns) != 2:
            raise ValueError(
                f"{path}, line {line_number}: has {_count(len(columns), 'column')}; expected 2, with a tab between them"
            )
        yield line_number, Pair(*columns)


def _side_by_side(source: str, target: str) -> Iterator[tuple[int, Pair]]:
    lengths = [0, 0]
    for left, right in zip_longest(numbered_lines(source), numbered_lines(target)):
        if left:
            lengths[0] = left[0]
        if right:
            lengths[1] = right[0]
        if left and right:
            yield left[0], Pair(left[1], right[1])
    if lengths[0] != lengths[1]:
        longer = source if lengths[0] > lengths[1] else target
        raise ValueError(
            f"{source} has {_count(lengths[0], 'line')} and {target} {lengths[1]};"
            f" line {min(lengths) + 1} of {longer} has no partner"
        )


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
