"""What a model is trained on: the built-in grammar, or parallel text of one's own."""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from clearhead.translation.config import Config
from clearhead.translation.data._batching import Ids
from clearhead.translation.data._corpus import Pair, prepared, read_pairs
from clearhead.translation.data.grammar import generate
from clearhead.translation.data.grammar.generate import Example
from clearhead.translation.tokenizer import Vocabulary

EPOCH = 16384  # sentences the grammar makes for each
PROBE = 1000


@dataclass(frozen=True, eq=False)
class Data:
    name: str
    vocabulary: Vocabulary
    epoch: Callable[[int], Sequence[Ids]]
    valid: tuple[Ids, ...]
    references: tuple[Pair, ...]  # the validation set as text
    probe: tuple[Example, ...]  # sentences whose relations are known, never met in training
    notes: tuple[str, ...]  # what was left out, and why
    fingerprint: int  # differs where the data do


def from_grammar(config: Config) -> Data:
    """Sentences made as they are needed, other ones in every epoch; those to validate and probe with never among
    them."""
    source, target = generate.vocabulary()
    vocabulary = Vocabulary.of_words(sorted({*source, *target}))

    def epoch(number: int) -> list[Ids]:
        made = generate.sentences(zlib.crc32(repr((config.training.seed, number)).encode()))
        return [to_ids(vocabulary, example) for example in itertools.islice(made, EPOCH)]

    valid = _distinct("valid", config.text.validation)
    return Data(
        "grammar",
        vocabulary,
        epoch,
        tuple(to_ids(vocabulary, example) for example in valid),
        tuple(Pair(" ".join(example.source), " ".join(example.target)) for example in valid),
        _distinct("probe", PROBE),
        (),
        zlib.crc32(repr((valid, source, target)).encode()),
    )


def to_ids(vocabulary: Vocabulary, example: Example) -> Ids:
    return Ids(*(vocabulary.encode(" ".join(side)) for side in (example.source, example.target)))


def from_files(
    paths: Sequence[str], valid: Sequence[str], config: Config, vocabulary: Vocabulary | None = None
) -> Data:
    """Parallel text. Subwords are learned from it, unless a vocabulary is given."""
    text = config.text
    corpus = read_pairs(paths)
    if valid:
        held_out = prepared(read_pairs(valid), text.source, text.target)
        corpus = prepared(corpus, text.source, text.target, without=held_out.pairs)
        kept = list(corpus.pairs)
    else:
        corpus = prepared(corpus, text.source, text.target)
        kept = list(corpus.pairs)
        random.Random(0).shuffle(kept)
        if len(kept) <= text.validation:
            raise ValueError(
                f"data has {len(kept)} pairs and {text.validation} are to be kept to validate with"
                " (text.validation); give more, or a validation set"
            )
        held_out = replace(corpus, pairs=tuple(kept[: text.validation]), notes=())
        kept = kept[text.validation :]
    if vocabulary is None:
        vocabulary = Vocabulary.of_subwords((side for pair in kept for side in pair), text.vocabulary)

    notes = [*corpus.notes, *held_out.notes]
    if len(vocabulary) > text.vocabulary:
        notes.append(
            f"{len(vocabulary)} tokens instead of {text.vocabulary} (text.vocabulary):"
            " the text has that many different characters"
        )

    def encoded(pairs: Sequence[Pair]) -> list[Ids]:
        sources, targets = (vocabulary.encode_all([pair[side] for pair in pairs]) for side in (0, 1))
        return [Ids(*sides) for sides in zip(sources, targets, strict=True)]

    def short_enough(name: str, given: Sequence[Pair]) -> tuple[list[Ids], list[Pair]]:
        pairs, most = encoded(given), text.max_tokens
        fitting = [max(len(pair.source), len(pair.target)) <= most for pair in pairs]
        if not all(fitting):
            first = given[fitting.index(False)].source
            notes.append(
                f"{fitting.count(False)} {name} pairs of more than {most} tokens left out (text.max_tokens),"
                f" the first: {first[:60]!r}"
            )
        if not any(fitting):
            raise ValueError(f"no {name} pair has at most {most} tokens (text.max_tokens)")
        return list(itertools.compress(pairs, fitting)), list(itertools.compress(given, fitting))

    short, _ = short_enough("training", kept)
    valid_ids, references = short_enough("validation", held_out.pairs)
    return Data(
        ", ".join(paths),
        vocabulary,
        lambda number: short,
        tuple(valid_ids),
        tuple(references),
        (),
        tuple(notes),
        zlib.crc32(repr((kept, held_out.pairs)).encode()),
    )


def _distinct(split: generate.Split, count: int) -> tuple[Example, ...]:
    """The first so many different sentences of a split."""
    found: dict[tuple[str, ...], Example] = {}
    for example in generate.sentences(0, split):
        found.setdefault(example.source, example)
        if len(found) == count:
            break
    return tuple(found.values())
