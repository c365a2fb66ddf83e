"""What a model is trained on: the built-in grammar, or parallel text of one's own."""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from clearhead.transformer import grammar
from clearhead.transformer.batching import Ids
from clearhead.transformer.config import Config
from clearhead.transformer.corpus import Pair, prepared, read_pairs
from clearhead.transformer.grammar import Example
from clearhead.transformer.tokens import Vocabulary

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


def of_grammar(config: Config) -> Data:
    """Sentences made as they are needed, other ones in every epoch; those to validate and probe with never among
    them."""
    source, target = grammar.vocabulary()
    vocabulary = Vocabulary.of_words(sorted({*source, *target}))

    def ids(example: Example) -> Ids:
        return Ids(*(vocabulary.encode(" ".join(side)) for side in (example.source, example.target)))

    def epoch(number: int) -> list[Ids]:
        made = grammar.sentences(zlib.crc32(repr((config.training.seed, number)).encode()))
        return [ids(example) for example in itertools.islice(made, EPOCH)]

    valid = _distinct("valid", config.text.validation)
    return Data(
        "grammar",
        vocabulary,
        epoch,
        tuple(map(ids, valid)),
        tuple(Pair(" ".join(example.source), " ".join(example.target)) for example in valid),
        _distinct("probe", PROBE),
        (),
        zlib.crc32(repr((valid, source, target)).encode()),
    )


def of_files(paths: Sequence[str], valid: Sequence[str], config: Config, vocabulary: Vocabulary | None = None) -> Data:
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

    def encoded(pairs: Sequence[Pair]) -> list[Ids]:
        sources, targets = (vocabulary.encode_all([pair[side] for pair in pairs]) for side in (0, 1))
        return [Ids(*sides) for sides in zip(sources, targets, strict=True)]

    notes = [*corpus.notes, *held_out.notes]
    pairs, most = encoded(kept), text.max_tokens
    short = [pair for pair in pairs if max(len(pair.source), len(pair.target)) <= most]
    if len(short) < len(pairs):
        first = next(kept[n] for n, pair in enumerate(pairs) if max(len(pair.source), len(pair.target)) > most)
        notes.append(
            f"{len(pairs) - len(short)} pairs of more than {most} tokens left out (text.max_tokens),"
            f" the first: {first.source[:60]!r}"
        )
    if not short:
        raise ValueError(f"data has no pair of at most {most} tokens (text.max_tokens)")
    return Data(
        ", ".join(paths),
        vocabulary,
        lambda number: short,
        tuple(encoded(held_out.pairs)),
        held_out.pairs,
        (),
        tuple(notes),
        zlib.crc32(repr((kept, held_out.pairs)).encode()),
    )


def _distinct(split: grammar.Split, count: int) -> tuple[Example, ...]:
    """The first so many different sentences of a split."""
    found: dict[tuple[str, ...], Example] = {}
    for example in grammar.sentences(0, split):
        found.setdefault(example.source, example)
        if len(found) == count:
            break
    return tuple(found.values())
