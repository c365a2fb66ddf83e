"""Parts of the grammar's sentences, in both languages: noun phrases, subjects, and what says when, where and how."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar, get_args

from clearhead.translation.data.grammar._lexicon import (
    ADJECTIVES,
    AT,
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
    Kind,
    Noun,
    Tense,
)

T = TypeVar("T")
_FITTING = {kind: [adjective for adjective in ADJECTIVES if kind in adjective.japanese] for kind in get_args(Kind)}


# only random() is promised to give the same numbers in every version of Python
def chance(rng: random.Random, probability: float) -> bool:
    return rng.random() < probability


def pick(rng: random.Random, choices: Iterable[T]) -> T:
    among = tuple(choices)
    return among[int(rng.random() * len(among))]


def _shuffled(rng: random.Random, items: Iterable[T]) -> list[T]:
    return sorted(items, key=lambda _: rng.random())


@dataclass(frozen=True, eq=False)
class Word:
    """A token of the source. Two are the same only if they are one object, so its place can be asked for later."""

    text: str


@dataclass(frozen=True, eq=False)
class Piece:
    """A token of the target, the word it answers to, and the noun it hangs on if it has another."""

    text: str
    of: Word | None = None
    relation: str = "alignment"
    decided_by: Word | None = None


class Edge(NamedTuple):
    """Two words of the source that belong together: `subject` to `verb`, `adjective` to `noun`."""

    dependent: str
    head: str
    words: tuple[Word, Word]


@dataclass(eq=False)
class Phrase:
    """Part of a sentence, in both languages."""

    english: list[Word] = field(default_factory=list)
    japanese: list[Piece] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    heads: list[Word] = field(default_factory=list)  # the noun; two of them if joined by "and"


@dataclass(eq=False)
class Subject(Phrase):
    definite: bool = True
    agreement: Literal["i", "he", "they"] = "he"  # whose verb forms it takes


Slot = Literal["time", "frequency", "place", "manner"]
Position = Literal["front", "middle", "end"]


@dataclass(eq=False)
class Adverbial(Phrase):
    slot: Slot = "time"
    position: Position = "end"


def _words(text: str) -> list[Word]:
    return [Word(part) for part in text.split()]


def _pieces(text: str, of: Word, relation: str = "alignment") -> list[Piece]:
    """The first token answers to the word; what follows it is a particle."""
    first, *particles = text.split()
    return [Piece(first, of, relation), *map(Piece, particles)]


def noun_phrase(rng: random.Random, noun: Noun, determiner: str, *, bare: float = 0.4) -> Phrase:
    """English: the very old hat that is red. Japanese: what follows the noun comes first."""
    phrase, head = Phrase(), Word(noun.english)
    before, after = _adjectives(rng, noun.kind, bare)
    english: list[Word] = []
    described: list[Piece] = []
    for place, adjective in enumerate(before):
        words, pieces = _described(rng, adjective, noun.kind, degree=place == 0)
        english += words
        described += pieces
        phrase.edges.append(Edge("adjective", "noun", (words[-1], head)))
    english.append(head)
    if after is not None:
        words, pieces = _described(rng, after, noun.kind, degree=True)
        english += [Word("that"), Word("are" if noun.number == "many" else "is"), *words]
        described = pieces + described
        phrase.edges.append(Edge("adjective", "noun", (words[-1], head)))
    if determiner == "a":
        article = "an" if english[0].text[0] in "aeiou" else "a"
        phrase.english = [*([Word(article)] if noun.number == "one" else []), *english]
    elif noun.kind == "sport":
        phrase.english = english
    else:
        word = Word(determiner)
        phrase.english = [word, *english]
        if DETERMINERS[determiner]:
            phrase.japanese += _pieces(DETERMINERS[determiner], word)
    phrase.japanese += [*described, *_pieces(noun.japanese, head, "noun")]
    phrase.heads = [head]
    return phrase


def _adjectives(rng: random.Random, kind: Kind, bare: float) -> tuple[list[Adjective], Adjective | None]:
    """Those before a noun, and one after it; none with the probability `bare`."""
    fitting = _FITTING[kind]
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


def _described(rng: random.Random, adjective: Adjective, kind: Kind, *, degree: bool) -> tuple[list[Word], list[Piece]]:
    """An adjective, the last of its words, perhaps with a degree before it."""
    word = Word(adjective.english)
    words, pieces = [word], _pieces(adjective.japanese[kind], word, "adjective")
    if degree and chance(rng, 0.3):
        more = Word(pick(rng, DEGREES))
        return [more, *words], [*_pieces(DEGREES[more.text], more), *pieces]
    return words, pieces


def draw_determiner(rng: random.Random, *, without: tuple[str, ...] = ()) -> str:
    share = rng.random()
    if share < 0.65:
        return "the" if share < 0.38 else "a"
    return pick(rng, (word for word in DETERMINERS if word not in ("the", "a", *without)))


def joined(first: Phrase, second: Phrase) -> Phrase:
    word = Word("and")
    return Phrase(
        [*first.english, word, *second.english],
        [*first.japanese, Piece("to", word), *second.japanese],
        [*first.edges, *second.edges],
        [*first.heads, *second.heads],
    )


def draw_subject(rng: random.Random, kinds: tuple[Kind, ...], used: set[str]) -> Subject:
    if chance(rng, 0.3):
        word = Word(pick(rng, PRONOUNS))
        agreement = "i" if word.text == "i" else "he" if word.text in ("he", "she") else "they"
        return Subject([word], _pieces(PRONOUNS[word.text], word), [], [word], True, agreement)
    determiner = draw_determiner(rng)
    phrase = noun_phrase(rng, unused(rng, _of_kinds(kinds), used), determiner)
    several = chance(rng, 0.08)
    if several:
        phrase = joined(phrase, noun_phrase(rng, unused(rng, PEOPLE, used), draw_determiner(rng)))
    agreement = "they" if several else "he"
    return Subject(phrase.english, phrase.japanese, phrase.edges, phrase.heads, determiner != "a", agreement)


def _of_kinds(kinds: tuple[Kind, ...]) -> Iterator[str]:
    return (name for name, noun in NOUNS.items() if noun.kind in kinds)


def unused(rng: random.Random, names: Iterable[str], used: set[str]) -> Noun:
    """One that the sentence does not have yet: nobody meets themselves."""
    name = pick(rng, (name for name in names if name not in used))
    used.add(name)
    return NOUNS[name]


def draw_time(rng: random.Random, tense: Tense) -> Adverbial:
    time = pick(rng, (time for time in TIMES if tense in time.tenses))
    words = _words(time.english)
    return Adverbial(words, _pieces(time.japanese, words[-1]), heads=words if len(words) == 1 else [], slot="time")


def draw_adverb(rng: random.Random, slot: Literal["frequency", "manner"]) -> Adverbial:
    adverbs = FREQUENCIES if slot == "frequency" else MANNERS
    word = Word(pick(rng, adverbs))
    return Adverbial([word], _pieces(adverbs[word.text], word), heads=[word], slot=slot)


def draw_place(rng: random.Random, particle: str) -> Adverbial:
    noun = NOUNS[pick(rng, PLACES)]
    phrase = noun_phrase(rng, noun, "the" if chance(rng, 0.7) else draw_determiner(rng))
    preposition = Word("at" if noun.english in AT else "in")
    pieces = [*phrase.japanese, Piece(particle)]
    return Adverbial([preposition, *phrase.english], pieces, phrase.edges, [], slot="place")


def placed(rng: random.Random, adverbials: list[Adverbial], *, negative: bool, question: bool) -> list[Adverbial]:
    """Each given a position, no two the front nor the middle; those at the end in some order, but manner first."""
    taken = set[Position](["front"] if question else [])
    for adverbial in _shuffled(rng, adverbials):
        allowed: tuple[Position, ...] = ("front", "end")
        if adverbial.slot == "manner" and negative:
            allowed = ("end",)  # "did not slowly write" is hardly English
        elif adverbial.slot in ("frequency", "manner"):
            allowed = ("front", "middle", "end")
        adverbial.position = pick(rng, (position for position in allowed if position not in taken))
        taken |= {adverbial.position} - {"end"}
    return sorted(_shuffled(rng, adverbials), key=lambda adverbial: adverbial.slot != "manner")


def words_at(adverbials: list[Adverbial], position: Position) -> list[Word]:
    return [word for adverbial in adverbials if adverbial.position == position for word in adverbial.english]


def pieces_in(adverbials: list[Adverbial], *slots: Slot) -> list[Piece]:
    return [piece for slot in slots for found in adverbials if found.slot == slot for piece in found.japanese]
