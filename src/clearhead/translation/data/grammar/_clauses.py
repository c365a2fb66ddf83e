"""Clauses of the grammar, in both languages: actions, and sentences with "there is"."""

from __future__ import annotations

import random
from dataclasses import dataclass

from clearhead.translation.data.grammar._lexicon import (
    ANIMATE_CATEGORIES,
    EXISTENCE_NOUNS,
    NOUNS,
    PEOPLE,
    VERBS,
    Tense,
    Verb,
)
from clearhead.translation.data.grammar._phrases import (
    Adverbial,
    Edge,
    Phrase,
    Piece,
    Word,
    assign_positions,
    chance,
    draw_adverb,
    draw_determiner,
    draw_place,
    draw_subject,
    draw_time,
    draw_unused_noun,
    join_phrases,
    noun_phrase,
    pick,
    pieces_of,
    words_at,
)


@dataclass(frozen=True)
class _Form:
    """Grammatical form of the verb."""

    tense: Tense
    progressive: bool
    negative: bool
    question: bool


def _form(rng: random.Random, *, progressive: float) -> _Form:
    ongoing = chance(rng, progressive)
    share = rng.random()
    tense: Tense = "present" if share < 0.5 else "past" if ongoing or share < 0.83 else "future"
    return _Form(tense, ongoing, chance(rng, 0.16), chance(rng, 0.16))


def _ending(form: _Form, tense: Word, negation: Word, mark: Word) -> list[Piece]:
    """Return the tokens after the stem. A negative past has two: masen is "not", and deshita marks the past."""
    past = form.tense == "past"
    if form.negative:
        pieces = [Piece("masen", negation), *([Piece("deshita", tense, "tense")] if past else [])]
    else:
        pieces = [Piece("mashita" if past else "masu", tense, "tense")]
    return [*pieces, *([Piece("ka", mark)] if form.question else []), Piece(".", mark)]


def _be(agreement: str, tense: Tense) -> str:
    forms = {"i": ("am", "was"), "he": ("is", "was"), "they": ("are", "were")}[agreement]
    return forms[tense == "past"]


def _finite(verb: Verb, agreement: str, form: _Form) -> tuple[Word | None, Word]:
    """Return the auxiliary (or None) and the verb."""
    if form.progressive:
        return Word(_be(agreement, form.tense)), Word(verb.progressive)
    if form.tense == "future":
        return Word("will"), Word(verb.base)
    present = form.tense == "present"
    if form.negative or form.question:
        return Word(("does" if agreement == "he" else "do") if present else "did"), Word(verb.base)
    return None, Word((verb.third if agreement == "he" else verb.base) if present else verb.past)


# verbs with several senses are drawn more often, so that no sense is rare
_VERBS_BY_WEIGHT = [verb for verb in VERBS for _ in range(3 + len(verb.senses))]


def action(rng: random.Random) -> Phrase:
    """Draw a sentence about an action.

    The Japanese order is subject, time, place, recipient, manner, object, verb.
    """
    form, verb, used = _form(rng, progressive=0.33), pick(rng, _VERBS_BY_WEIGHT), set[str]()
    sense = pick(rng, verb.senses)
    subject = draw_subject(rng, verb.subjects, used)
    auxiliary, word = _finite(verb, subject.agreement, form)
    target, recipient = Phrase(), Phrase()
    before, after = list[Word](), list[Word]()  # recipient before or after the object: "him a hat", "a hat to him"
    if sense.objects:
        target = noun_phrase(rng, draw_unused_noun(rng, sense.objects, used), draw_determiner(rng), bare=0.25)
        if len(verb.senses) == 1 and len(sense.objects) > 1 and chance(rng, 0.1):
            second = noun_phrase(rng, draw_unused_noun(rng, sense.objects, used), draw_determiner(rng))
            target = join_phrases(target, second)
    if verb.recipient and chance(rng, 0.8):
        # without "my": giving to one's own family is kureru, not ageru
        recipient = noun_phrase(rng, draw_unused_noun(rng, PEOPLE, used), draw_determiner(rng, without=("my",)))
        if chance(rng, 0.5):
            after = [Word("to"), *recipient.english]
        else:
            before = recipient.english
    adverbials = _circumstances(rng, verb, form)
    negation, mark = Word("not"), Word("?" if form.question else ".")

    helping = [auxiliary] if auxiliary else []
    english = [
        *words_at(adverbials, "front"),
        *(helping + subject.english if form.question else subject.english + helping),
        *([negation] if form.negative else []),
        *words_at(adverbials, "middle"),
        *(word, *before, *target.english, *after, *words_at(adverbials, "end"), mark),
    ]
    decided_by = target.heads[0] if len(verb.senses) > 1 else None
    stem = Piece(sense.progressive if form.progressive else sense.stem, word, "verb", decided_by)
    japanese = [
        *(*subject.japanese, Piece("wa" if subject.definite else "ga")),
        *pieces_of(adverbials, "time", "frequency", "place"),
        *(*recipient.japanese, *([Piece("ni")] if recipient.heads else [])),
        *pieces_of(adverbials, "manner"),
        *(*target.japanese, *([Piece(verb.particle)] if target.heads else [])),
        *(stem, *([Piece("i", auxiliary)] if form.progressive else [])),
        *_ending(form, auxiliary or word, negation, mark),
    ]
    edges = [edge for part in (subject, target, recipient, *adverbials) for edge in part.edges]
    edges += [Edge("subject", "verb", (head, word)) for head in subject.heads]
    edges += [Edge("object", "verb", (head, word)) for head in target.heads]
    edges += [Edge("adverb", "verb", (head, word)) for adverbial in adverbials for head in adverbial.heads]
    return Phrase(english, japanese, edges)


def _circumstances(rng: random.Random, verb: Verb, form: _Form) -> list[Adverbial]:
    adverbials: list[Adverbial] = []
    if chance(rng, 0.4):
        adverbials.append(draw_time(rng, form.tense))
    if not form.negative and chance(rng, 0.25):  # "not often" has another translation, amari
        adverbials.append(draw_adverb(rng, "frequency"))
    if chance(rng, 0.35):
        adverbials.append(draw_place(rng, "de"))
    if verb.manner and chance(rng, 0.3):
        adverbials.append(draw_adverb(rng, "manner"))
    return assign_positions(rng, adverbials, negative=form.negative, question=form.question)


def existence(rng: random.Random) -> Phrase:
    """Draw a sentence with "there is". The noun decides the verb: i for living beings, ari for things."""
    form = _form(rng, progressive=0.0)
    noun = NOUNS[pick(rng, EXISTENCE_NOUNS)]
    subject = noun_phrase(rng, noun, "a")
    agreement = "they" if noun.grammatical_number == "many" else "he"
    future = form.tense == "future"
    auxiliary, there = Word("will"), Word("there")
    word = Word("be" if future else _be(agreement, form.tense))
    location, other = draw_place(rng, "ni"), []
    if chance(rng, 0.5):
        often = not form.negative and chance(rng, 0.5)
        other = [draw_adverb(rng, "frequency") if often else draw_time(rng, form.tense)]
    adverbials = assign_positions(rng, [location, *other], negative=form.negative, question=form.question)
    negation, mark = Word("not"), Word("?" if form.question else ".")

    finite = auxiliary if future else word
    english = [
        *words_at(adverbials, "front"),
        *((finite, there) if form.question else (there, finite)),
        *([negation] if form.negative else []),
        *words_at(adverbials, "middle"),
        *([word] if future else []),
        *(*subject.english, *words_at(adverbials, "end"), mark),
    ]
    japanese = [
        *pieces_of(adverbials, "time", "place", "frequency"),
        *(*subject.japanese, Piece("wa" if form.negative else "ga")),
        Piece("i" if noun.category in ANIMATE_CATEGORIES else "ari", word, "verb", subject.heads[0]),
        *_ending(form, finite, negation, mark),
    ]
    edges = [edge for part in (subject, *adverbials) for edge in part.edges]
    edges.append(Edge("subject", "verb", (subject.heads[0], word)))
    edges += [Edge("adverb", "verb", (head, word)) for adverbial in other for head in adverbial.heads]
    return Phrase(english, japanese, edges)
