"""Phrases of the grammar, in both languages: noun phrases, subjects and adverbials."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar, get_args

from clearhead.translation.data.grammar._lexicon import (
    ADJECTIVES,
    AT_PLACES,
    DEGREES,
    DETERMINERS,
    FREQUENCIES,
    MANNERS,
    NOUNS,
    PEOPLE,
    PLACES,
    PRONOUNS,
    TIMES,
    Adjective,
    Noun,
    NounCategory,
    Tense,
)

T = TypeVar("T")
_ADJECTIVES_BY_CATEGORY = {
    category: [adjective for adjective in ADJECTIVES if category in adjective.japanese]
    for category in get_args(NounCategory)
}


# Python guarantees the same numbers in every version only for random()
def chance(rng: random.Random, probability: float) -> bool:
    return rng.random() < probability


def pick(rng: random.Random, choices: Iterable[T]) -> T:
    options = tuple(choices)
    return options[int(rng.random() * len(options))]


def _shuffled(rng: random.Random, items: Iterable[T]) -> list[T]:
    return sorted(items, key=lambda _: rng.random())


@dataclass(frozen=True, eq=False)
class Word:
    """Token of the source. Words compare by identity, so that each occurrence can be located later."""

    text: str


@dataclass(frozen=True, eq=False)
class Piece:
    """Token of the target, the word that it translates, and the noun that its form depends on."""

    text: str
    aligned_to: Word | None = None
    relation: str = "alignment"
    decided_by: Word | None = None


class Edge(NamedTuple):
    """Dependency between two words of the source, such as from a subject to its verb."""

    dependent: str
    head: str
    words: tuple[Word, Word]


@dataclass(eq=False)
class Phrase:
    """Part of a sentence, in both languages."""

    english: list[Word] = field(default_factory=list)
    japanese: list[Piece] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    heads: list[Word] = field(default_factory=list)  # the noun, or two nouns joined by "and"


@dataclass(eq=False)
class Subject(Phrase):
    """Subject of a sentence."""

    definite: bool = True
    agreement: Literal["i", "he", "they"] = "he"  # pronoun with the same verb forms


AdverbialKind = Literal["time", "frequency", "place", "manner"]
AdverbialPosition = Literal["front", "middle", "end"]


@dataclass(eq=False)
class Adverbial(Phrase):
    """Adverbial of time, frequency, place or manner."""

    kind: AdverbialKind = "time"
    position: AdverbialPosition = "end"


def _words(text: str) -> list[Word]:
    return [Word(part) for part in text.split()]


def _pieces(text: str, word: Word, relation: str = "alignment") -> list[Piece]:
    """Return the tokens of a translation: the first is aligned to the word, the others are particles."""
    first, *particles = text.split()
    return [Piece(first, word, relation), *map(Piece, particles)]


def noun_phrase(rng: random.Random, noun: Noun, determiner: str, *, bare: float = 0.4) -> Phrase:
    """Draw a noun phrase, such as "the very old hat that is red".

    In Japanese, the relative clause precedes the other adjectives.

    Args:
        bare: probability of a phrase without adjectives.
    """
    phrase, head = Phrase(), Word(noun.english)
    before, after = _adjectives(rng, noun.category, bare)
    english: list[Word] = []
    described: list[Piece] = []
    for index, adjective in enumerate(before):
        words, pieces = _describe(rng, adjective, noun.category, degree=index == 0)
        english += words
        described += pieces
        phrase.edges.append(Edge("adjective", "noun", (words[-1], head)))
    english.append(head)
    if after is not None:
        words, pieces = _describe(rng, after, noun.category, degree=True)
        english += [Word("that"), Word("are" if noun.grammatical_number == "many" else "is"), *words]
        described = pieces + described
        phrase.edges.append(Edge("adjective", "noun", (words[-1], head)))
    if determiner == "a":
        article = "an" if english[0].text[0] in "aeiou" else "a"
        phrase.english = [*([Word(article)] if noun.grammatical_number == "one" else []), *english]
    elif noun.category == "sport":
        phrase.english = english
    else:
        word = Word(determiner)
        phrase.english = [word, *english]
        if DETERMINERS[determiner]:
            phrase.japanese += _pieces(DETERMINERS[determiner], word)
    phrase.japanese += [*described, *_pieces(noun.japanese, head, "noun")]
    phrase.heads = [head]
    return phrase


def _adjectives(rng: random.Random, category: NounCategory, bare: float) -> tuple[list[Adjective], Adjective | None]:
    """Return adjectives before a noun, and one after it. With the probability `bare`, return no adjectives."""
    fitting = _ADJECTIVES_BY_CATEGORY[category]
    if not fitting or chance(rng, bare):
        return [], None
    first = pick(rng, fitting)
    others = [adjective for adjective in fitting if adjective.group != first.group]
    if not others or chance(rng, 0.65):
        return ([first], None) if chance(rng, 0.5) else ([], first)
    second = pick(rng, others)
    if chance(rng, 0.5):
        return [first], second
    return sorted((first, second), key=lambda adjective: adjective.group), None


def _describe(
    rng: random.Random, adjective: Adjective, category: NounCategory, *, degree: bool
) -> tuple[list[Word], list[Piece]]:
    """Return the words and the pieces of an adjective, with an optional adverb of degree before it."""
    word = Word(adjective.english)
    words, pieces = [word], _pieces(adjective.japanese[category], word, "adjective")
    if degree and chance(rng, 0.3):
        adverb = Word(pick(rng, DEGREES))
        return [adverb, *words], [*_pieces(DEGREES[adverb.text], adverb), *pieces]
    return words, pieces


def draw_determiner(rng: random.Random, *, without: tuple[str, ...] = ()) -> str:
    share = rng.random()
    if share < 0.65:
        return "the" if share < 0.38 else "a"
    return pick(rng, (word for word in DETERMINERS if word not in ("the", "a", *without)))


def join_phrases(first: Phrase, second: Phrase) -> Phrase:
    word = Word("and")
    return Phrase(
        [*first.english, word, *second.english],
        [*first.japanese, Piece("to", word), *second.japanese],
        [*first.edges, *second.edges],
        [*first.heads, *second.heads],
    )


def draw_subject(rng: random.Random, categories: tuple[NounCategory, ...], used: set[str]) -> Subject:
    if chance(rng, 0.3):
        word = Word(pick(rng, PRONOUNS))
        agreement = "i" if word.text == "i" else "he" if word.text in ("he", "she") else "they"
        return Subject([word], _pieces(PRONOUNS[word.text], word), [], [word], True, agreement)
    determiner = draw_determiner(rng)
    phrase = noun_phrase(rng, draw_unused_noun(rng, _nouns_in(categories), used), determiner)
    several = chance(rng, 0.08)
    if several:
        phrase = join_phrases(phrase, noun_phrase(rng, draw_unused_noun(rng, PEOPLE, used), draw_determiner(rng)))
    agreement = "they" if several else "he"
    return Subject(phrase.english, phrase.japanese, phrase.edges, phrase.heads, determiner != "a", agreement)


def _nouns_in(categories: tuple[NounCategory, ...]) -> Iterator[str]:
    return (name for name, noun in NOUNS.items() if noun.category in categories)


def draw_unused_noun(rng: random.Random, names: Iterable[str], used: set[str]) -> Noun:
    """Draw a noun that the sentence does not contain yet."""
    name = pick(rng, (name for name in names if name not in used))
    used.add(name)
    return NOUNS[name]


def draw_time(rng: random.Random, tense: Tense) -> Adverbial:
    time = pick(rng, (time for time in TIMES if tense in time.tenses))
    words = _words(time.english)
    return Adverbial(words, _pieces(time.japanese, words[-1]), heads=words if len(words) == 1 else [], kind="time")


def draw_adverb(rng: random.Random, kind: Literal["frequency", "manner"]) -> Adverbial:
    adverbs = FREQUENCIES if kind == "frequency" else MANNERS
    word = Word(pick(rng, adverbs))
    return Adverbial([word], _pieces(adverbs[word.text], word), heads=[word], kind=kind)


def draw_place(rng: random.Random, particle: str) -> Adverbial:
    noun = NOUNS[pick(rng, PLACES)]
    phrase = noun_phrase(rng, noun, "the" if chance(rng, 0.7) else draw_determiner(rng))
    preposition = Word("at" if noun.english in AT_PLACES else "in")
    pieces = [*phrase.japanese, Piece(particle)]
    return Adverbial([preposition, *phrase.english], pieces, phrase.edges, [], kind="place")


def assign_positions(
    rng: random.Random, adverbials: list[Adverbial], *, negative: bool, question: bool
) -> list[Adverbial]:
    """Assign a position to each adverbial: at most one in front and one in the middle, the others at the end.

    Return the adverbials in random order, manner first.
    """
    taken = set[AdverbialPosition](["front"] if question else [])
    for adverbial in _shuffled(rng, adverbials):
        allowed: tuple[AdverbialPosition, ...] = ("front", "end")
        if adverbial.kind == "manner" and negative:
            allowed = ("end",)  # "did not slowly write" is hardly English
        elif adverbial.kind in ("frequency", "manner"):
            allowed = ("front", "middle", "end")
        adverbial.position = pick(rng, (position for position in allowed if position not in taken))
        taken |= {adverbial.position} - {"end"}
    return sorted(_shuffled(rng, adverbials), key=lambda adverbial: adverbial.kind != "manner")


def words_at(adverbials: list[Adverbial], position: AdverbialPosition) -> list[Word]:
    return [word for adverbial in adverbials if adverbial.position == position for word in adverbial.english]


def pieces_of(adverbials: list[Adverbial], *kinds: AdverbialKind) -> list[Piece]:
    return [
        piece for kind in kinds for adverbial in adverbials if adverbial.kind == kind for piece in adverbial.japanese
    ]
