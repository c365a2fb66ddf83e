"""How good a model is: loss, exact translations and BLEU on sentences it was not trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clearhead._utils.checks import check_int
from clearhead.translation._decoding import Hypothesis, beam_search
from clearhead.translation.config import Bleu
from clearhead.translation.data._batching import Ids, collate, in_batches, padded
from clearhead.translation.model import Transformer
from clearhead.translation.tokenizer import PAD, Vocabulary

BATCH_TOKENS = 8192


@dataclass(frozen=True)
class Metrics:
    loss: float  # cross-entropy per token, in nats
    exact: float  # share of translations equal to the reference
    bleu: float


def cross_entropy(logits: Tensor, expected: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Summed over all tokens that are no padding."""
    return nn.functional.cross_entropy(
        logits.flatten(0, -2).float(),
        expected.flatten(),
        ignore_index=PAD,
        reduction="sum",
        label_smoothing=label_smoothing,
    )


def validate(
    model: Transformer, vocabulary: Vocabulary, valid: Sequence[Ids], references: Sequence[str], bleu: Bleu
) -> Metrics:
    """Of greedy translations."""
    training = model.training
    model.eval()
    device = model.embedding.weight.device
    total, tokens = 0.0, 0
    with torch.inference_mode():
        for numbers in in_batches(valid, BATCH_TOKENS):
            batch = collate([valid[number] for number in numbers]).to(device)
            total += float(cross_entropy(model(batch.source, batch.target, batch.lengths), batch.expected))
            tokens += int((batch.expected != PAD).sum())
    written = write_all(model, [pair.source for pair in valid], beams=1)
    model.train(training)
    texts = [vocabulary.decode(own.tokens) for own in written]
    exact = sum(text == reference for text, reference in zip(texts, references, strict=True)) / len(texts)
    return Metrics(total / tokens, exact, bleu_score(texts, references, bleu))


def write_all(
    model: Transformer,
    sources: Sequence[list[int]],
    *,
    beams: int,
) -> list[Hypothesis]:
    """Translations in the order of the sources, those of like length together."""
    device = model.embedding.weight.device
    found: dict[int, Hypothesis] = {}
    pairs = [Ids(source, source) for source in sources]  # a translation is about as long
    for numbers in in_batches(pairs, BATCH_TOKENS // check_int("beams", beams)):
        source, lengths = padded([sources[number] for number in numbers], device)
        most = 2 * source.shape[1] + 32
        for number, own in zip(numbers, beam_search(model, source, lengths, beams=beams, most=most), strict=True):
            found[number] = own
    return [found[number] for number in range(len(sources))]


def bleu_score(texts: Sequence[str], references: Sequence[str], tokenizer: Bleu) -> float:
    """sacrebleu's, of the whole set."""
    import sacrebleu

    return sacrebleu.corpus_bleu(list(texts), [list(references)], tokenize=tokenizer, force=True).score
