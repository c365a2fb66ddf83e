"""Annotation of a given English sentence: its translation and its links, by a search through the grammar.

The generator draws all choices from a sequence of random values. The search changes single values of this sequence,
and keeps a change if the drawn sentence does not become less similar to the given one.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

from clearhead.translation.data.grammar.generate import AnnotatedPair, annotated_pair, draw_clause, vocabulary

MAX_WORDS = 12
MAX_DRAWS = 120_000  # about ten seconds
MAX_DRAWS_WITHOUT_PROGRESS = 1_500  # the search then starts again from a new sentence


class _Replay(random.Random):
    """Random values that are read from `values`. If the list has no more, values are drawn and added to it."""

    def __init__(self) -> None:
        super().__init__(0)
        self.values: list[float] = []
        self.used = 0

    def random(self) -> float:
        """Return the next value."""
        if self.used == len(self.values):
            self.values.append(super().random())
        self.used += 1
        return self.values[self.used - 1]


@functools.lru_cache(maxsize=64)
def annotate(text: str) -> AnnotatedPair:
    """Return the translation and the links of an English sentence of the grammar.

    Raises:
        ValueError: the sentence has unknown words or too many words, or the search did not find it in the grammar.

    Examples:
        >>> " ".join(annotate("did the old man wear a hat ?").target)
        'toshioita otoko wa boushi o kaburi mashita ka .'
    """
    words = text.split()
    known = set(vocabulary()[0])
    unknown = [word for word in dict.fromkeys(words) if word not in known]
    if unknown:
        raise ValueError(f"{text!r} has words that the grammar does not have: {', '.join(map(repr, unknown))}")
    if not 1 <= len(words) <= MAX_WORDS:
        raise ValueError(f"{text!r} has {len(words)} words; expected 1 to {MAX_WORDS}, separated by spaces")
    rng, replay = random.Random(0), _Replay()
    best: list[float] = []
    best_distance, stale = len(words) + MAX_WORDS, 0
    for _ in range(MAX_DRAWS):
        if stale > MAX_DRAWS_WITHOUT_PROGRESS:
            best, best_distance, stale = [], len(words) + MAX_WORDS, 0
        replay.values, replay.used = _changed(best, rng), 0
        clause = draw_clause(replay)
        distance = _edit_distance([word.text for word in clause.english], words)
        if distance == 0:
            return annotated_pair(clause)
        stale = 0 if distance < best_distance else stale + 1
        if distance <= best_distance:
            best, best_distance = replay.values[: replay.used], distance
    raise ValueError(
        f"{text!r} was not found among the sentences of the grammar; expected a sentence such as"
        ' "did the old man wear a hat ?"'
    )


def _changed(values: list[float], rng: random.Random) -> list[float]:
    """Return a copy with one value replaced, inserted or removed, or without its end."""
    if not values:
        return []
    copy, kind, at = list(values), rng.random(), int(rng.random() * len(values))
    if kind < 0.7:
        copy[at] = rng.random()
    elif kind < 0.8:
        copy.insert(at, rng.random())
    elif kind < 0.9:
        del copy[at]
    else:
        del copy[at:]
    return copy


def _edit_distance(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the smallest number of words to insert, remove or replace."""
    row = list(range(len(second) + 1))
    for index, word in enumerate(first, 1):
        diagonal, row[0] = row[0], index
        for column, other in enumerate(second, 1):
            diagonal, row[column] = row[column], min(row[column] + 1, row[column - 1] + 1, diagonal + (word != other))
    return row[-1]
