"""Ablation of a head: its effect on translations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from clearhead._utils.evaluating import evaluating
from clearhead.recording.recording import Address
from clearhead.translation._decoding import greedy
from clearhead.translation.data._batching import collate, pad_rows
from clearhead.translation.data.dataset import encode_pair
from clearhead.translation.data.grammar._lexicon import FREQUENCIES, MANNERS, TIMES
from clearhead.translation.data.grammar.generate import AnnotatedPair
from clearhead.translation.heads.probes import PROBE_BATCH_SIZE
from clearhead.translation.model import Transformer
from clearhead.translation.tokenizer import Vocabulary

MAX_TRANSLATED_PAIRS = 200
TOKEN_KINDS = ("noun", "adjective", "verb", "tense", "adverb", "other word", "particle")
JAPANESE_ADVERBS = {*FREQUENCIES.values(), *MANNERS.values(), *(time.japanese.split()[0] for time in TIMES)}


@dataclass(frozen=True)
class AblationEffect:
    """Effect of ablating a head. Pairs of numbers are (intact model, ablated model)."""

    address: Address
    exact: tuple[float, float]  # share of translations that equal their reference
    errors: dict[str, tuple[float, float]]  # error rate of the next token, by kind of token
    example: tuple[str, str, str] | None  # source, reference translation, translation of the ablated model


@torch.inference_mode()
def ablation_effect(
    model: Transformer, vocabulary: Vocabulary, probe: Sequence[AnnotatedPair], address: Address
) -> AblationEffect:
    """Compare the translations of a model with and without a head, on held-out sentences."""
    pairs = probe[:MAX_TRANSLATED_PAIRS]
    with evaluating(model):
        errors, errors_without = (_error_rates(model, vocabulary, probe, ablate) for ablate in ((), (address,)))
        intact, ablated = (_translations(model, vocabulary, pairs, ablate) for ablate in ((), (address,)))
    references = [" ".join(pair.target) for pair in pairs]
    spoiled = (
        (" ".join(pair.source), reference, without)
        for pair, reference, text, without in zip(pairs, references, intact, ablated, strict=True)
        if text == reference != without
    )
    return AblationEffect(
        address,
        (_share_equal(intact, references), _share_equal(ablated, references)),
        {kind: (errors[kind], errors_without[kind]) for kind in errors},
        next(spoiled, None),
    )


def _error_rates(
    model: Transformer, vocabulary: Vocabulary, probe: Sequence[AnnotatedPair], ablate: Collection[Address]
) -> dict[str, float]:
    """Return the error rate of the next token, given the reference before it, for each kind of token."""
    device = model.embedding.weight.device
    error_counts: Counter[str] = Counter()
    token_counts: Counter[str] = Counter()
    for start in range(0, len(probe), PROBE_BATCH_SIZE):
        pairs = probe[start : start + PROBE_BATCH_SIZE]
        batch = collate([encode_pair(vocabulary, pair) for pair in pairs]).to(device)
        logits = model(batch.source, batch.target, batch.lengths, ablate=ablate)
        wrong = (logits.argmax(dim=-1) != batch.expected).cpu()
        for row, pair in enumerate(pairs):
            for position, kind in enumerate(token_kinds(pair)):
                token_counts[kind] += 1
                error_counts[kind] += bool(wrong[row, position])
    return {kind: error_counts[kind] / token_counts[kind] for kind in TOKEN_KINDS if token_counts[kind]}


def token_kinds(pair: AnnotatedPair) -> list[str]:
    """Return the kind of each token of a translation."""
    kinds = ["adverb" if token in JAPANESE_ADVERBS else "particle" for token in pair.target]
    for relation, at, _ in pair.links:
        if relation in TOKEN_KINDS:
            kinds[at] = relation
        elif relation == "alignment" and kinds[at] == "particle":
            kinds[at] = "other word"
    return kinds


def _translations(
    model: Transformer, vocabulary: Vocabulary, pairs: Sequence[AnnotatedPair], ablate: Collection[Address]
) -> list[str]:
    sources = [encode_pair(vocabulary, pair).source for pair in pairs]
    source, lengths = pad_rows(sources, model.embedding.weight.device)
    hypotheses = greedy(model, source, lengths, max_tokens=40, ablate=ablate)
    return [vocabulary.decode(hypothesis.tokens) for hypothesis in hypotheses]


def _share_equal(texts: Sequence[str], references: Sequence[str]) -> float:
    return sum(text == reference for text, reference in zip(texts, references, strict=True)) / len(texts)
