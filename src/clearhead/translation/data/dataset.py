"""Training data: the built-in grammar, or parallel text from files."""

from __future__ import annotations

import itertools
import os
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from clearhead.translation.config import Config
from clearhead.translation.data._batching import TokenIds
from clearhead.translation.data._corpus import Pair, prepare_corpus, read_pairs
from clearhead.translation.data.grammar import generate
from clearhead.translation.data.grammar.generate import AnnotatedPair
from clearhead.translation.tokenizer import Vocabulary

GRAMMAR_EPOCH_SIZE = 16384  # sentences
PROBE_SIZE = 1000  # sentences


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training pairs, a validation set, and sentences for probing heads."""

    name: str
    vocabulary: Vocabulary
    epoch: Callable[[int], Sequence[TokenIds]]  # training pairs of an epoch
    valid: tuple[TokenIds, ...]
    references: tuple[Pair, ...]  # the validation set as text
    probe: tuple[AnnotatedPair, ...]  # held-out sentences with annotated relations
    notes: tuple[str, ...]  # notes about pairs that were left out
    fingerprint: int  # checksum of the data


def from_grammar(config: Config) -> Dataset:
    """Return a dataset of sentences of the built-in grammar.

    Every epoch has new sentences. The validation set and the probe are disjoint from them.
    """
    source_words, target_words = generate.vocabulary()
    vocabulary = Vocabulary.from_words(sorted({*source_words, *target_words}))

    def epoch(index: int) -> list[TokenIds]:
        pairs = generate.sentences(zlib.crc32(repr((config.training.seed, index)).encode()))
        return [encode_pair(vocabulary, pair) for pair in itertools.islice(pairs, GRAMMAR_EPOCH_SIZE)]

    valid = _distinct_pairs("valid", config.text.validation)
    # runs store the fingerprint: it must not change with the name of the class, which was Example
    content = repr((valid, source_words, target_words)).replace("AnnotatedPair(", "Example(")
    return Dataset(
        "grammar",
        vocabulary,
        epoch,
        tuple(encode_pair(vocabulary, pair) for pair in valid),
        tuple(Pair(" ".join(pair.source), " ".join(pair.target)) for pair in valid),
        _distinct_pairs("probe", PROBE_SIZE),
        (),
        zlib.crc32(content.encode()),
    )


def encode_pair(vocabulary: Vocabulary, pair: AnnotatedPair) -> TokenIds:
    """Return the token ids of a sentence of the grammar and of its translation."""
    return TokenIds(*(vocabulary.encode(" ".join(words)) for words in (pair.source, pair.target)))


def from_files(
    paths: Sequence[str], valid: Sequence[str], config: Config, vocabulary: Vocabulary | None = None
) -> Dataset:
    """Return a dataset of parallel text from files.

    Args:
        paths: files to train on: "pairs.tsv" with two columns, or "train.en,train.ja".
        valid: files to validate with, in the same format. If empty, `config.text.validation` pairs are held out.
        config: configuration of the run.
        vocabulary: vocabulary to use (default: subwords learned from the training pairs).
    """
    text = config.text
    corpus = read_pairs(paths)
    if valid:
        held_out = prepare_corpus(read_pairs(valid), text.source, text.target)
        corpus = prepare_corpus(corpus, text.source, text.target, without=held_out.pairs)
        train_pairs = list(corpus.pairs)
    else:
        corpus = prepare_corpus(corpus, text.source, text.target)
        train_pairs = list(corpus.pairs)
        random.Random(0).shuffle(train_pairs)
        if len(train_pairs) <= text.validation:
            raise ValueError(
                f"data has {len(train_pairs)} pairs, but {text.validation} are held out for validation"
                " (text.validation); pass more pairs, or a validation set"
            )
        held_out = replace(corpus, pairs=tuple(train_pairs[: text.validation]), notes=())
        train_pairs = train_pairs[text.validation :]
    if vocabulary is None:
        vocabulary = Vocabulary.from_texts((side for pair in train_pairs for side in pair), text.vocabulary)

    notes = [*corpus.notes, *held_out.notes]
    if len(vocabulary) > text.vocabulary:
        notes.append(
            f"{len(vocabulary)} tokens instead of {text.vocabulary} (text.vocabulary):"
            " the text has this many different characters"
        )

    def encode_short(split: str, pairs: Sequence[Pair]) -> tuple[list[TokenIds], list[Pair]]:
        """Return the pairs of at most `max_tokens` tokens, as token ids and as text; add a note about the others."""
        encoded, max_tokens = _encode_all(vocabulary, pairs), text.max_tokens
        fits = [max(len(ids.source), len(ids.target)) <= max_tokens for ids in encoded]
        if not all(fits):
            first = pairs[fits.index(False)].source
            notes.append(
                f"{fits.count(False)} {split} pairs of more than {max_tokens} tokens left out (text.max_tokens),"
                f" the first: {first[:60]!r}"
            )
        if not any(fits):
            raise ValueError(f"no {split} pair has at most {max_tokens} tokens (text.max_tokens)")
        return list(itertools.compress(encoded, fits)), list(itertools.compress(pairs, fits))

    train_ids, _ = encode_short("training", train_pairs)
    valid_ids, references = encode_short("validation", held_out.pairs)
    return Dataset(
        ", ".join(_file_names(path) for path in paths),
        vocabulary,
        lambda index: train_ids,
        tuple(valid_ids),
        tuple(references),
        (),
        tuple(notes),
        zlib.crc32(repr((train_pairs, held_out.pairs)).encode()),
    )


def _file_names(path: str) -> str:
    """Return "train.en,train.ja" for "data/train.en,data/train.ja": the name is written to files that are shared."""
    files = [path] if os.path.exists(path) else path.split(",")
    return ",".join(map(os.path.basename, files))


def _encode_all(vocabulary: Vocabulary, pairs: Sequence[Pair]) -> list[TokenIds]:
    sources, targets = (vocabulary.encode_all([pair[side] for pair in pairs]) for side in (0, 1))
    return [TokenIds(*sides) for sides in zip(sources, targets, strict=True)]


def _distinct_pairs(split: generate.Split, count: int) -> tuple[AnnotatedPair, ...]:
    """Return the first `count` pairs of a split with different sources."""
    pairs: dict[tuple[str, ...], AnnotatedPair] = {}
    for pair in generate.sentences(0, split):
        pairs.setdefault(pair.source, pair)
        if len(pairs) == count:
            break
    return tuple(pairs.values())
