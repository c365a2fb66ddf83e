"""Validation metrics of a model: loss, share of exact translations and BLEU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from clearhead._utils.evaluating import evaluating
from clearhead._utils.extras import needs_extra
from clearhead.translation._decoding import EVALUATION_BATCH_TOKENS, decode_all
from clearhead.translation._loss import cross_entropy
from clearhead.translation.config import BleuTokenizer
from clearhead.translation.data._batching import TokenIds, batch_indices, collate
from clearhead.translation.model import Transformer
from clearhead.translation.tokenizer import PAD, Vocabulary


@dataclass(frozen=True)
class ValidationMetrics:
    """Metrics of one validation."""

    loss: float  # cross-entropy per token, in nats
    exact: float  # share of translations that equal their reference translation
    bleu: float


def validate(
    model: Transformer,
    vocabulary: Vocabulary,
    valid: Sequence[TokenIds],
    references: Sequence[str],
    bleu: BleuTokenizer,
) -> ValidationMetrics:
    """Return the loss on a validation set, and the share of exact matches and BLEU of greedy translations."""
    device = model.embedding.weight.device
    loss_sum, token_count = 0.0, 0
    with evaluating(model):
        with torch.inference_mode():
            for indices in batch_indices(valid, EVALUATION_BATCH_TOKENS):
                batch = collate([valid[index] for index in indices]).to(device)
                loss_sum += float(cross_entropy(model(batch.source, batch.target, batch.lengths), batch.expected))
                token_count += int((batch.expected != PAD).sum())
        hypotheses = decode_all(model, [pair.source for pair in valid], beams=1)
    texts = [vocabulary.decode(hypothesis.tokens) for hypothesis in hypotheses]
    exact = sum(text == reference for text, reference in zip(texts, references, strict=True)) / len(texts)
    return ValidationMetrics(loss_sum / token_count, exact, bleu_score(texts, references, bleu))


def bleu_score(texts: Sequence[str], references: Sequence[str], tokenizer: BleuTokenizer) -> float:
    """Return the corpus BLEU, computed by sacrebleu."""
    with needs_extra("translate", "BLEU"):
        import sacrebleu

    return sacrebleu.corpus_bleu(list(texts), [list(references)], tokenize=tokenizer, force=True).score
