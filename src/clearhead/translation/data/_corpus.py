"""Parallel text: `read_pairs` reads it from files, `prepare_corpus` normalizes it for training."""

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
    """Pairs in the order of their files, and notes about pairs that were left out."""

    pairs: tuple[Pair, ...]
    notes: tuple[str, ...]


def read_pairs(paths: Sequence[str]) -> Corpus:
    """Read the pairs of all `paths`. Pairs with an empty side are left out, with a note.

    A path is a file with two columns, separated by a tab ("tatoeba.tsv"), or two files with one sentence per line,
    separated by a comma ("train.en,train.ja"). Files may be compressed with gzip (.gz).
    """
    if isinstance(paths, str):
        raise TypeError(f"paths is the string {paths!r}; expected a list of strings")
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
    """Normalize a corpus; remove duplicates and the pairs of `without`, a validation set.

    `without` is normalized in the same way before the comparison. Notes count a removed pair under the first reason
    that applies.
    """

    def normalize(pair: Pair) -> Pair:
        return Pair(source(pair.source), target(pair.target))

    held_out = {normalize(pair) for pair in without}
    unique_pairs: dict[Pair, None] = {}  # an ordered set
    left_out: dict[str, list[Pair]] = {
        "with a side that is empty after normalization": [],
        "that are held out for validation": [],
        "that are duplicates": [],
    }
    empty, validation, duplicates = left_out.values()
    for original in corpus.pairs:
        pair = normalize(original)
        if not (pair.source and pair.target):
            empty.append(original)
        elif pair in held_out:
            validation.append(original)
        elif pair in unique_pairs:
            duplicates.append(original)
        else:
            unique_pairs[pair] = None
    notes = [
        f"{_count(len(pairs), 'pair')} {reason} left out (the first: {pairs[0].source!r})"
        for reason, pairs in left_out.items()
        if pairs
    ]
    if not unique_pairs:
        raise ValueError(f"no pairs remain of {len(corpus.pairs)}: {'; '.join(notes) or 'the corpus is empty'}")
    return Corpus(tuple(unique_pairs), (*corpus.notes, *notes))


def _numbered_pairs(path: str) -> tuple[str, Iterator[tuple[int, Pair]]]:
    """Return the file name for notes, and the pairs with their line numbers."""
    files = [path] if Path(path).exists() else path.split(",")  # a file name may contain a comma
    if len(files) > 2:
        raise ValueError(
            f"{path}: {len(files)} files separated by commas; expected two (source,target), or one with two columns"
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
                f"{path}, line {line_number}: has {_count(len(columns), 'column')}; expected 2, separated by a tab"
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
            f" line {min(lengths) + 1} of {longer} has no counterpart"
        )


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
