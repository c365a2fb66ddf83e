"""Built-in corpus: English sentences of a small grammar, Japanese translations in romaji, and links between words.

A link connects a token to the source word that its translation depends on, so that a probe can test whether a head
finds this word. Linked words occur at varying distances: adjectives precede or follow their noun, adverbs have three
positions, and subjects precede or follow the auxiliary.

    did the man wear this hat that is very old ?
    otoko wa kono totemo furui boushi o kaburi mashita ka .

Each English sentence has one translation. Articles are not translated, but a subject with "a" takes ga instead of wa.
Distinctions that Japanese lacks are dropped: "will" and "does" both become masu.
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
    """Link from a token to a word of the source.

    - noun, adjective, verb: from a target token to the word that it translates. Pronouns, days and determiners have
      only an alignment.
    - tense: from masu, mashita or deshita to the auxiliary, or to the verb if the sentence has no auxiliary. A masen
      outside the past translates only "not", so it has no such link.
    - object of the verb: from a verb stem that depends on a noun to this noun, such as the garment of "wear".
    - alignment: from every target token that translates a source token. Most particles have none; the exceptions are
      to ("and") and ka ("?").

    Within the source, a word with two answers (a noun with two adjectives) has no link.
    """

    relation: str  # one of TARGET_RELATIONS or SOURCE_RELATIONS
    at: int  # position of the linking token: in the target, or in the source for SOURCE_RELATIONS
    to: int  # position of the linked word in the source


@dataclass(frozen=True)
class AnnotatedPair:
    """Words of a sentence and of its translation, with the links between them."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    links: tuple[Link, ...]


def sentences(seed: int, split: Split = "train") -> Iterator[AnnotatedPair]:
    """Yield an endless stream of sentences, determined by the seed. Sentences may repeat.

    The split of a sentence depends only on the checksum of its source, so splits are disjoint for all seeds.

    Examples:
        >>> pair = next(sentences(0))
        >>> " ".join(pair.source)
        'a doctor that is strong breaks her big red chair in the evening .'
        >>> " ".join(pair.target)
        'tsuyoi isha ga yuugata kanojo no ookii akai isu o kowashi masu .'
    """
    rng = random.Random(seed)
    while True:
        clause = draw_clause(rng)
        if MIN_SOURCE_TOKENS <= len(clause.english) <= MAX_SOURCE_TOKENS:
            pair = annotated_pair(clause)
            if split_of(pair.source) == split:
                yield pair


def draw_clause(rng: random.Random) -> Phrase:
    """Draw a sentence of any length."""
    return existence(rng) if chance(rng, 0.07) else action(rng)


def annotated_pair(clause: Phrase) -> AnnotatedPair:
    """Return the words of a sentence and of its translation, with their links."""
    source = tuple(word.text for word in clause.english)
    return AnnotatedPair(source, tuple(piece.text for piece in clause.japanese), tuple(_links(clause)))


def vocabulary() -> tuple[list[str], list[str]]:
    """Return the sorted words of the sources, and those of the targets."""
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


def split_of(source: Sequence[str]) -> Split:
    """Return the split of a sentence, which depends only on its words."""
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
