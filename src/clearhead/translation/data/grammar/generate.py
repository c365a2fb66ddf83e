"""The built-in corpus: English made by a small grammar, its Japanese in romaji, and which word answers to which.

Everything that has to be found in the source for a sentence to be translated is known here as a link, so that it can
be asked of a head whether it finds it. None of it lies at a fixed distance: adjectives stand before their noun or
after it, adverbs in three places, subjects before the auxiliary or behind it.

    did the man wear this hat that is very old ?
    otoko wa kono totemo furui boushi o kaburi mashita ka .

Each English sentence has one translation. Articles have none, but a subject with "a" takes ga for wa. What Japanese
does not say it does not say here: "will" and "does" are both masu.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from clearhead.translation.data.grammar._clauses import action, existence
from clearhead.translation.data.grammar._lexicon import (
    ADJECTIVES,
    DEGREES,
    DETERMINERS,
    FREQUENCIES,
    MANNERS,
    NOUNS,
    PRONOUNS,
    TIMES,
    VERBS,
)
from clearhead.translation.data.grammar._phrases import Phrase, chance

TARGET_RELATIONS = ("noun", "adjective", "verb", "tense", "object of the verb", "alignment")
SOURCE_RELATIONS = (
    "subject → verb",
    "verb → subject",
    "verb → object",
    "object → verb",
    "adjective → noun",
    "noun → adjective",
    "adverb → verb",
    "verb → adverb",
)
Split = Literal["train", "valid", "probe"]
MIN_SOURCE_TOKENS, MAX_SOURCE_TOKENS = 4, 20
_AUXILIARIES = ("do", "does", "did", "will", "am", "is", "are", "was", "were", "be")
_SOURCE_FUNCTION_WORDS = (*_AUXILIARIES, "not", "there", "that", "in", "at", "to", "and", "an", ".", "?")
_TARGET_PARTICLES = ("wa", "ga", "o", "ni", "de", "to", "ka", ".")
_TARGET_FUNCTION_WORDS = (*_TARGET_PARTICLES, "i", "ari", "masu", "mashita", "masen", "deshita")


class Link(NamedTuple):
    """A token, and the token of the source that it is to find.

    noun, adjective, verb: the word it translates. Pronouns, days and determiners have an alignment only.
    tense: from masu, mashita or deshita to the auxiliary, or to the verb where there is none. The masen of a sentence
        that is not past says no more than "not".
    object of the verb: from a stem that hangs on a noun to that noun: what is worn, or what there is.
    alignment: of every token that answers to one of the source. Of the particles, to does ("and") and ka ("?").

    Within the source, a word that has two answers (the noun of two adjectives) has no link.
    """

    relation: str  # one of TARGET_RELATIONS or SOURCE_RELATIONS
    at: int  # position of the token that looks: in the target, or, for relations within the source, in the source
    to: int  # position in the source of the token it is to find


@dataclass(frozen=True)
class AnnotatedPair:
    """A sentence and its translation, word by word, with the links between their words."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    links: tuple[Link, ...]


def sentences(seed: int, split: Split = "train") -> Iterator[AnnotatedPair]:
    """Yield an endless stream of sentences, the same for the same seed; a sentence may come again.

    A sentence belongs to one split whatever the seed: the checksum of its source decides.

    >>> pair = next(sentences(0))
    >>> " ".join(pair.source)
    'a doctor that is strong breaks her big red chair in the evening .'
    >>> " ".join(pair.target)
    'tsuyoi isha ga yuugata kanojo no ookii akai isu o kowashi masu .'
    """
    rng = random.Random(seed)
    while True:
        clause = existence(rng) if chance(rng, 0.07) else action(rng)
        if MIN_SOURCE_TOKENS <= len(clause.english) <= MAX_SOURCE_TOKENS:
            source = tuple(word.text for word in clause.english)
            if _split(source) == split:
                yield AnnotatedPair(source, tuple(piece.text for piece in clause.japanese), tuple(_links(clause)))


def vocabulary() -> tuple[list[str], list[str]]:
    """Return the words of the sources and those of the targets, sorted."""
    source = {*_SOURCE_FUNCTION_WORDS, *NOUNS, *PRONOUNS, *DETERMINERS, *DEGREES, *FREQUENCIES, *MANNERS}
    source |= {adjective.english for adjective in ADJECTIVES}
    source |= {form for verb in VERBS for form in (verb.base, verb.third, verb.past, verb.progressive)}
    target = {*_TARGET_FUNCTION_WORDS, *PRONOUNS.values(), *DEGREES.values(), *FREQUENCIES.values(), *MANNERS.values()}
    target |= {noun.japanese for noun in NOUNS.values()}
    target |= {form for verb in VERBS for sense in verb.senses for form in (sense.stem, sense.progressive)}
    phrases = [*DETERMINERS.values(), *(text for adjective in ADJECTIVES for text in adjective.japanese.values())]
    for time in TIMES:
        source.update(time.english.split())
        phrases.append(time.japanese)
    target.update(word for phrase in phrases for word in phrase.split())
    return sorted(source), sorted(target)


def _split(source: Sequence[str]) -> Split:
    share = zlib.crc32(" ".join(source).encode()) % 16
    return "probe" if share == 0 else "valid" if share == 1 else "train"


def _links(clause: Phrase) -> Iterator[Link]:
    positions = {word: position for position, word in enumerate(clause.english)}
    for at, piece in enumerate(clause.japanese):
        if piece.aligned_to is not None:
            for relation in dict.fromkeys((piece.relation, "alignment")):
                yield Link(relation, at, positions[piece.aligned_to])
        if piece.decided_by is not None:
            yield Link("object of the verb", at, positions[piece.decided_by])
    source_links = [
        Link(f"{from_role} → {to_role}", positions[word], positions[other])
        for dependent, head, (first, second) in clause.edges
        for from_role, to_role, word, other in ((dependent, head, first, second), (head, dependent, second, first))
    ]
    answer_counts = Counter((link.relation, link.at) for link in source_links)
    for link in sorted(source_links, key=lambda link: (SOURCE_RELATIONS.index(link.relation), link.at, link.to)):
        if answer_counts[link.relation, link.at] == 1:
            yield link
