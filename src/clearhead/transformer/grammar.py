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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar, get_args

from clearhead.transformer.lexicon import (
    ADJECTIVES,
    ALIVE,
    AT,
    DEGREES,
    DETERMINERS,
    FREQUENCIES,
    MANNERS,
    NOUNS,
    PEOPLE,
    PLACES,
    PRONOUNS,
    THERE,
    TIMES,
    VERBS,
    Adjective,
    Kind,
    Noun,
    Tense,
    Verb,
)

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
SHORTEST, LONGEST = 4, 20  # tokens of a source
T = TypeVar("T")
_AUXILIARIES = ("do", "does", "did", "will", "am", "is", "are", "was", "were", "be")
_SOURCE_FUNCTION_WORDS = (*_AUXILIARIES, "not", "there", "that", "in", "at", "to", "and", "an", ".", "?")
_TARGET_PARTICLES = ("wa", "ga", "o", "ni", "de", "to", "ka", ".")
_TARGET_FUNCTION_WORDS = (*_TARGET_PARTICLES, "i", "ari", "masu", "mashita", "masen", "deshita")
_FITTING = {kind: [adjective for adjective in ADJECTIVES if kind in adjective.japanese] for kind in get_args(Kind)}


class Link(NamedTuple):
    """What a token is to find.

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
class Example:
    source: tuple[str, ...]
    target: tuple[str, ...]
    links: tuple[Link, ...]


def sentences(seed: int, split: Split = "train") -> Iterator[Example]:
    """An endless stream, the same for the same seed; a sentence may come again.

    A sentence belongs to one split whatever the seed: the checksum of its source decides.

    >>> example = next(sentences(0))
    >>> " ".join(example.source)
    'a doctor that is strong breaks her big red chair in the evening .'
    >>> " ".join(example.target)
    'tsuyoi isha ga yuugata kanojo no ookii akai isu o kowashi masu .'
    """
    rng = random.Random(seed)
    while True:
        clause = _existence(rng) if _chance(rng, 0.07) else _action(rng)
        if SHORTEST <= len(clause.english) <= LONGEST:
            source = tuple(word.text for word in clause.english)
            if _split(source) == split:
                yield Example(source, tuple(piece.text for piece in clause.japanese), tuple(_links(clause)))


def vocabulary() -> tuple[list[str], list[str]]:
    """The words of the sources and those of the targets, sorted."""
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


# only random() is promised to give the same numbers in every version of Python
def _chance(rng: random.Random, probability: float) -> bool:
    return rng.random() < probability


def _pick(rng: random.Random, choices: Iterable[T]) -> T:
    among = tuple(choices)
    return among[int(rng.random() * len(among))]


def _shuffled(rng: random.Random, items: Iterable[T]) -> list[T]:
    return sorted(items, key=lambda _: rng.random())


@dataclass(frozen=True, eq=False)
class _Word:
    """A token of the source. Two are the same only if they are one object, so its place can be asked for later."""

    text: str


@dataclass(frozen=True, eq=False)
class _Piece:
    """A token of the target, the word it answers to, and the noun it hangs on if it has another."""

    text: str
    of: _Word | None = None
    relation: str = "alignment"
    decided_by: _Word | None = None


class _Edge(NamedTuple):
    """Two words of the source that belong together: `subject` to `verb`, `adjective` to `noun`."""

    dependent: str
    head: str
    words: tuple[_Word, _Word]


@dataclass(eq=False)
class _Phrase:
    """Part of a sentence, in both languages."""

    english: list[_Word] = field(default_factory=list)
    japanese: list[_Piece] = field(default_factory=list)
    edges: list[_Edge] = field(default_factory=list)
    heads: list[_Word] = field(default_factory=list)  # the noun; two of them if joined by "and"


@dataclass(eq=False)
class _Subject(_Phrase):
    definite: bool = True
    agreement: Literal["i", "he", "they"] = "he"  # whose verb forms it takes


Slot = Literal["time", "frequency", "place", "manner"]
Position = Literal["front", "middle", "end"]


@dataclass(eq=False)
class _Adverbial(_Phrase):
    slot: Slot = "time"
    position: Position = "end"


def _words(text: str) -> list[_Word]:
    return [_Word(part) for part in text.split()]


def _pieces(text: str, of: _Word, relation: str = "alignment") -> list[_Piece]:
    """The first token answers to the word; what follows it is a particle."""
    first, *particles = text.split()
    return [_Piece(first, of, relation), *map(_Piece, particles)]


def _links(clause: _Phrase) -> Iterator[Link]:
    places = {word: place for place, word in enumerate(clause.english)}
    for at, piece in enumerate(clause.japanese):
        if piece.of is not None:
            for relation in dict.fromkeys((piece.relation, "alignment")):
                yield Link(relation, at, places[piece.of])
        if piece.decided_by is not None:
            yield Link("object of the verb", at, places[piece.decided_by])
    found = [
        (f"{looking} → {sought}", places[word], places[other])
        for dependent, head, (of, to) in clause.edges
        for looking, sought, word, other in ((dependent, head, of, to), (head, dependent, to, of))
    ]
    answers = Counter((relation, at) for relation, at, _ in found)
    for relation, at, to in sorted(found, key=lambda link: (SOURCE_RELATIONS.index(link[0]), *link[1:])):
        if answers[relation, at] == 1:
            yield Link(relation, at, to)


def _noun_phrase(rng: random.Random, noun: Noun, determiner: str, *, bare: float = 0.4) -> _Phrase:
    """English: the very old hat that is red. Japanese: what follows the noun comes first."""
    phrase, head = _Phrase(), _Word(noun.english)
    before, after = _adjectives(rng, noun.kind, bare)
    english: list[_Word] = []
    described: list[_Piece] = []
    for place, adjective in enumerate(before):
        words, pieces = _described(rng, adjective, noun.kind, degree=place == 0)
        english += words
        described += pieces
        phrase.edges.append(_Edge("adjective", "noun", (words[-1], head)))
    english.append(head)
    if after is not None:
        words, pieces = _described(rng, after, noun.kind, degree=True)
        english += [_Word("that"), _Word("are" if noun.number == "many" else "is"), *words]
        described = pieces + described
        phrase.edges.append(_Edge("adjective", "noun", (words[-1], head)))
    if determiner == "a":
        article = "an" if english[0].text[0] in "aeiou" else "a"
        phrase.english = [*([_Word(article)] if noun.number == "one" else []), *english]
    elif noun.kind == "sport":
        phrase.english = english
    else:
        word = _Word(determiner)
        phrase.english = [word, *english]
        if DETERMINERS[determiner]:
            phrase.japanese += _pieces(DETERMINERS[determiner], word)
    phrase.japanese += [*described, *_pieces(noun.japanese, head, "noun")]
    phrase.heads = [head]
    return phrase


def _adjectives(rng: random.Random, kind: Kind, bare: float) -> tuple[list[Adjective], Adjective | None]:
    """Those before a noun, and one after it; none with the probability `bare`."""
    fitting = _FITTING[kind]
    if not fitting or _chance(rng, bare):
        return [], None
    first = _pick(rng, fitting)
    others = [adjective for adjective in fitting if adjective.group != first.group]
    if not others or _chance(rng, 0.65):
        return ([first], None) if _chance(rng, 0.5) else ([], first)
    second = _pick(rng, others)
    if _chance(rng, 0.5):
        return [first], second
    return sorted((first, second), key=lambda adjective: adjective.group), None


def _described(
    rng: random.Random, adjective: Adjective, kind: Kind, *, degree: bool
) -> tuple[list[_Word], list[_Piece]]:
    """An adjective, the last of its words, perhaps with a degree before it."""
    word = _Word(adjective.english)
    words, pieces = [word], _pieces(adjective.japanese[kind], word, "adjective")
    if degree and _chance(rng, 0.3):
        more = _Word(_pick(rng, DEGREES))
        return [more, *words], [*_pieces(DEGREES[more.text], more), *pieces]
    return words, pieces


def _determiner(rng: random.Random, *, without: tuple[str, ...] = ()) -> str:
    share = rng.random()
    if share < 0.65:
        return "the" if share < 0.38 else "a"
    return _pick(rng, (word for word in DETERMINERS if word not in ("the", "a", *without)))


def _joined(first: _Phrase, second: _Phrase) -> _Phrase:
    word = _Word("and")
    return _Phrase(
        [*first.english, word, *second.english],
        [*first.japanese, _Piece("to", word), *second.japanese],
        [*first.edges, *second.edges],
        [*first.heads, *second.heads],
    )


def _subject(rng: random.Random, kinds: tuple[Kind, ...], used: set[str]) -> _Subject:
    if _chance(rng, 0.3):
        word = _Word(_pick(rng, PRONOUNS))
        agreement = "i" if word.text == "i" else "he" if word.text in ("he", "she") else "they"
        return _Subject([word], _pieces(PRONOUNS[word.text], word), [], [word], True, agreement)
    determiner = _determiner(rng)
    phrase = _noun_phrase(rng, _unused(rng, _of_kinds(kinds), used), determiner)
    joined = _chance(rng, 0.08)
    if joined:
        phrase = _joined(phrase, _noun_phrase(rng, _unused(rng, PEOPLE, used), _determiner(rng)))
    agreement = "they" if joined else "he"
    return _Subject(phrase.english, phrase.japanese, phrase.edges, phrase.heads, determiner != "a", agreement)


def _of_kinds(kinds: tuple[Kind, ...]) -> Iterator[str]:
    return (name for name, noun in NOUNS.items() if noun.kind in kinds)


def _unused(rng: random.Random, names: Iterable[str], used: set[str]) -> Noun:
    """One that the sentence does not have yet: nobody meets themselves."""
    name = _pick(rng, (name for name in names if name not in used))
    used.add(name)
    return NOUNS[name]


def _time(rng: random.Random, tense: Tense) -> _Adverbial:
    time = _pick(rng, (time for time in TIMES if tense in time.tenses))
    words = _words(time.english)
    return _Adverbial(words, _pieces(time.japanese, words[-1]), heads=words if len(words) == 1 else [], slot="time")


def _adverb(rng: random.Random, slot: Literal["frequency", "manner"]) -> _Adverbial:
    adverbs = FREQUENCIES if slot == "frequency" else MANNERS
    word = _Word(_pick(rng, adverbs))
    return _Adverbial([word], _pieces(adverbs[word.text], word), heads=[word], slot=slot)


def _place(rng: random.Random, particle: str) -> _Adverbial:
    noun = NOUNS[_pick(rng, PLACES)]
    phrase = _noun_phrase(rng, noun, "the" if _chance(rng, 0.7) else _determiner(rng))
    preposition = _Word("at" if noun.english in AT else "in")
    pieces = [*phrase.japanese, _Piece(particle)]
    return _Adverbial([preposition, *phrase.english], pieces, phrase.edges, [], slot="place")


def _placed(rng: random.Random, adverbials: list[_Adverbial], *, negative: bool, question: bool) -> list[_Adverbial]:
    """Each given a position, no two the front nor the middle; those at the end in some order, but manner first."""
    taken = set[Position](["front"] if question else [])
    for adverbial in _shuffled(rng, adverbials):
        allowed: tuple[Position, ...] = ("front", "end")
        if adverbial.slot == "manner" and negative:
            allowed = ("end",)  # "did not slowly write" is hardly English
        elif adverbial.slot in ("frequency", "manner"):
            allowed = ("front", "middle", "end")
        adverbial.position = _pick(rng, (position for position in allowed if position not in taken))
        taken |= {adverbial.position} - {"end"}
    return sorted(_shuffled(rng, adverbials), key=lambda adverbial: adverbial.slot != "manner")


def _at(adverbials: list[_Adverbial], position: Position) -> list[_Word]:
    return [word for adverbial in adverbials if adverbial.position == position for word in adverbial.english]


def _in(adverbials: list[_Adverbial], *slots: Slot) -> list[_Piece]:
    return [piece for slot in slots for found in adverbials if found.slot == slot for piece in found.japanese]


@dataclass(frozen=True)
class _Form:
    """What the verb is to say beside itself."""

    tense: Tense
    progressive: bool
    negative: bool
    question: bool


def _form(rng: random.Random, *, progressive: float) -> _Form:
    ongoing = _chance(rng, progressive)
    share = rng.random()
    tense: Tense = "present" if share < 0.5 else "past" if ongoing or share < 0.83 else "future"
    return _Form(tense, ongoing, _chance(rng, 0.16), _chance(rng, 0.16))


def _ending(form: _Form, tense: _Word, negation: _Word, mark: _Word) -> list[_Piece]:
    """All after the stem. Past and not is two tokens: masen is "not", and deshita alone says past."""
    past = form.tense == "past"
    if form.negative:
        pieces = [_Piece("masen", negation), *([_Piece("deshita", tense, "tense")] if past else [])]
    else:
        pieces = [_Piece("mashita" if past else "masu", tense, "tense")]
    return [*pieces, *([_Piece("ka", mark)] if form.question else []), _Piece(".", mark)]


def _be(agreement: str, tense: Tense) -> str:
    forms = {"i": ("am", "was"), "he": ("is", "was"), "they": ("are", "were")}[agreement]
    return forms[tense == "past"]


def _finite(verb: Verb, agreement: str, form: _Form) -> tuple[_Word | None, _Word]:
    """The auxiliary, if there is one, and the verb."""
    if form.progressive:
        return _Word(_be(agreement, form.tense)), _Word(verb.progressive)
    if form.tense == "future":
        return _Word("will"), _Word(verb.base)
    present = form.tense == "present"
    if form.negative or form.question:
        return _Word(("does" if agreement == "he" else "do") if present else "did"), _Word(verb.base)
    return None, _Word((verb.third if agreement == "he" else verb.base) if present else verb.past)


# a verb of many senses comes more often, or each of them would be rare
_VERBS_BY_WEIGHT = [verb for verb in VERBS for _ in range(3 + len(verb.senses))]


def _action(rng: random.Random) -> _Phrase:
    """Somebody does something: subject, time, place, recipient, manner, object and verb, in the order of Japanese."""
    form, verb, used = _form(rng, progressive=0.33), _pick(rng, _VERBS_BY_WEIGHT), set[str]()
    sense = _pick(rng, verb.senses)
    subject = _subject(rng, verb.subjects, used)
    auxiliary, word = _finite(verb, subject.agreement, form)
    target, recipient = _Phrase(), _Phrase()
    before, after = list[_Word](), list[_Word]()  # where the recipient stands: "him a hat", "a hat to him"
    if sense.objects:
        target = _noun_phrase(rng, _unused(rng, sense.objects, used), _determiner(rng), bare=0.25)
        if len(verb.senses) == 1 and len(sense.objects) > 1 and _chance(rng, 0.1):
            target = _joined(target, _noun_phrase(rng, _unused(rng, sense.objects, used), _determiner(rng)))
    if verb.recipient and _chance(rng, 0.8):
        # what is given to one's own is kureru rather than ageru
        recipient = _noun_phrase(rng, _unused(rng, PEOPLE, used), _determiner(rng, without=("my",)))
        if _chance(rng, 0.5):
            after = [_Word("to"), *recipient.english]
        else:
            before = recipient.english
    adverbials = _circumstances(rng, verb, form)
    negation, mark = _Word("not"), _Word("?" if form.question else ".")

    helping = [auxiliary] if auxiliary else []
    english = [
        *_at(adverbials, "front"),
        *(helping + subject.english if form.question else subject.english + helping),
        *([negation] if form.negative else []),
        *_at(adverbials, "middle"),
        *(word, *before, *target.english, *after, *_at(adverbials, "end"), mark),
    ]
    decided_by = target.heads[0] if len(verb.senses) > 1 else None
    stem = _Piece(sense.progressive if form.progressive else sense.stem, word, "verb", decided_by)
    japanese = [
        *(*subject.japanese, _Piece("wa" if subject.definite else "ga")),
        *_in(adverbials, "time", "frequency", "place"),
        *(*recipient.japanese, *([_Piece("ni")] if recipient.heads else [])),
        *_in(adverbials, "manner"),
        *(*target.japanese, *([_Piece(verb.particle)] if target.heads else [])),
        *(stem, *([_Piece("i", auxiliary)] if form.progressive else [])),
        *_ending(form, auxiliary or word, negation, mark),
    ]
    edges = [edge for part in (subject, target, recipient, *adverbials) for edge in part.edges]
    edges += [_Edge("subject", "verb", (head, word)) for head in subject.heads]
    edges += [_Edge("object", "verb", (head, word)) for head in target.heads]
    edges += [_Edge("adverb", "verb", (head, word)) for adverbial in adverbials for head in adverbial.heads]
    return _Phrase(english, japanese, edges)


def _circumstances(rng: random.Random, verb: Verb, form: _Form) -> list[_Adverbial]:
    found: list[_Adverbial] = []
    if _chance(rng, 0.4):
        found.append(_time(rng, form.tense))
    if not form.negative and _chance(rng, 0.25):  # "not often" would be another word, amari
        found.append(_adverb(rng, "frequency"))
    if _chance(rng, 0.35):
        found.append(_place(rng, "de"))
    if verb.manner and _chance(rng, 0.3):
        found.append(_adverb(rng, "manner"))
    return _placed(rng, found, negative=form.negative, question=form.question)


def _existence(rng: random.Random) -> _Phrase:
    """There is something somewhere: i if it lives, ari if not, and so the noun decides."""
    form = _form(rng, progressive=0)
    noun = NOUNS[_pick(rng, THERE)]
    subject = _noun_phrase(rng, noun, "a")
    agreement = "they" if noun.number == "many" else "he"
    future = form.tense == "future"
    auxiliary, there = _Word("will"), _Word("there")
    word = _Word("be" if future else _be(agreement, form.tense))
    place, other = _place(rng, "ni"), []
    if _chance(rng, 0.5):
        often = not form.negative and _chance(rng, 0.5)
        other = [_adverb(rng, "frequency") if often else _time(rng, form.tense)]
    adverbials = _placed(rng, [place, *other], negative=form.negative, question=form.question)
    negation, mark = _Word("not"), _Word("?" if form.question else ".")

    finite = auxiliary if future else word
    english = [
        *_at(adverbials, "front"),
        *((finite, there) if form.question else (there, finite)),
        *([negation] if form.negative else []),
        *_at(adverbials, "middle"),
        *([word] if future else []),
        *(*subject.english, *_at(adverbials, "end"), mark),
    ]
    japanese = [
        *_in(adverbials, "time", "place", "frequency"),
        *(*subject.japanese, _Piece("wa" if form.negative else "ga")),
        _Piece("i" if noun.kind in ALIVE else "ari", word, "verb", subject.heads[0]),
        *_ending(form, finite, negation, mark),
    ]
    edges = [edge for part in (subject, *adverbials) for edge in part.edges]
    edges.append(_Edge("subject", "verb", (subject.heads[0], word)))
    edges += [_Edge("adverb", "verb", (head, word)) for adverbial in other for head in adverbial.heads]
    return _Phrase(english, japanese, edges)
