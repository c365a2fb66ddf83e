"""Decoding of translations: greedy search and beam search."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from clearhead._utils.checks import check_int
from clearhead.recording.recording import Address
from clearhead.translation.data._batching import TokenIds, batch_indices, pad_rows
from clearhead.translation.model import Transformer
from clearhead.translation.tokenizer import END, PAD, START, UNKNOWN

EVALUATION_BATCH_TOKENS = 8192  # source and target tokens together


@dataclass(frozen=True)
class Hypothesis:
    """Tokens of a translation, without the start and end tokens."""

    tokens: tuple[int, ...]
    ended: bool  # False if the translation was cut at the token limit


@torch.inference_mode()
def greedy(
    model: Transformer,
    source: Int[Tensor, "batch source"],
    lengths: Int[Tensor, " batch"] | None = None,
    *,
    max_tokens: int = 128,
    ablate: Collection[Address] = (),
) -> list[Hypothesis]:
    """Translate a batch of sources, choosing the most probable next token at each step."""
    batch = source.shape[0]
    memory, caches = model.encode(source, lengths, ablate=ablate), model.caches()
    last = source.new_full((batch, 1), START)
    ended = torch.zeros(batch, dtype=torch.bool, device=source.device)
    tokens = []
    for _ in range(check_int("max_tokens", max_tokens)):
        logits = model.decode(last, memory, caches=caches, ablate=ablate)[:, -1]
        last = _mask_special(logits).argmax(dim=-1, keepdim=True)
        last = last.masked_fill(ended[:, None], PAD)
        tokens.append(last)
        ended |= last[:, 0] == END
        if bool(ended.all()):
            break
    return [_until_end(row) for row in torch.cat(tokens, dim=1).tolist()]


@torch.inference_mode()
def beam_search(
    model: Transformer,
    source: Int[Tensor, "batch source"],
    lengths: Int[Tensor, " batch"] | None = None,
    *,
    beams: int = 4,
    max_tokens: int = 128,
    length_penalty: float = 1.0,
) -> list[Hypothesis]:
    """Translate a batch of sources by beam search.

    Finished translations are compared by their log-probability divided by `length**length_penalty`. The search for
    a source stops when `beams` translations have ended, or when no unfinished one can score higher.
    """
    if check_int("beams", beams) == 1:
        return greedy(model, source, lengths, max_tokens=max_tokens)
    batch, device = source.shape[0], source.device
    source_indices = torch.arange(batch, device=device)[:, None]
    memory = model.encode(source, lengths).select(source_indices.expand(-1, beams).flatten())
    caches = model.caches()
    tokens = source.new_full((batch * beams, 1), START)
    # all beams start with the same token: the first step expands only the first beam, or it would give duplicates
    scores = torch.zeros(batch, beams, device=device)
    scores[:, 1:] = -torch.inf
    finished: list[list[tuple[float, list[int]]]] = [[] for _ in range(batch)]
    for step in range(1, check_int("max_tokens", max_tokens) + 1):
        logits = _mask_special(model.decode(tokens[:, -1:], memory, caches=caches)[:, -1].float())
        vocabulary = logits.shape[-1]
        candidates = scores[..., None] + logits.log_softmax(dim=-1).view(batch, beams, vocabulary)
        # each beam has one candidate that ends, so 2 * beams candidates contain at least `beams` that continue
        best, best_indices = candidates.flatten(1).topk(2 * beams, dim=-1)
        parents, next_tokens = best_indices // vocabulary, best_indices % vocabulary
        ending = (next_tokens == END) & best.isfinite()  # with a small vocabulary, topk also returns -inf candidates
        for index, rank in ending.nonzero().tolist():
            if rank < beams and len(finished[index]) < beams:
                row = tokens[index * beams + int(parents[index, rank]), 1:].tolist()
                finished[index].append((float(best[index, rank]) / step**length_penalty, row))
        unfinished = best.masked_fill(ending, -torch.inf)
        scores, ranks = unfinished.topk(beams, dim=-1)
        rows = (source_indices * beams + parents.gather(1, ranks)).flatten()
        tokens = torch.cat([tokens[rows], next_tokens.gather(1, ranks).view(-1, 1)], dim=1)
        caches.select(rows.tolist())
        if all(
            _is_done(ended, float(scores[index, 0]), beams, step, max_tokens, length_penalty)
            for index, ended in enumerate(finished)
        ):
            break
    hypotheses = []
    for index, ended in enumerate(finished):
        if ended:
            hypotheses.append(Hypothesis(tuple(max(ended)[1]), True))
        else:
            hypotheses.append(Hypothesis(tuple(tokens[index * beams, 1:].tolist()), False))
    return hypotheses


def decode_all(model: Transformer, sources: Sequence[list[int]], *, beams: int) -> list[Hypothesis]:
    """Translate sources in batches of similar length; return the translations in the order of the sources."""
    device = model.embedding.weight.device
    hypotheses: dict[int, Hypothesis] = {}
    pairs = [TokenIds(source, source) for source in sources]  # assumes translations as long as their sources
    for indices in batch_indices(pairs, EVALUATION_BATCH_TOKENS // check_int("beams", beams)):
        source, lengths = pad_rows([sources[index] for index in indices], device)
        max_tokens = 2 * source.shape[1] + 32
        decoded = beam_search(model, source, lengths, beams=beams, max_tokens=max_tokens)
        hypotheses.update(zip(indices, decoded, strict=True))
    return [hypotheses[index] for index in range(len(sources))]


def _mask_special(logits: Tensor) -> Tensor:
    """Set the logits of the padding, start and unknown tokens to -inf, in place."""
    logits[..., [PAD, START, UNKNOWN]] = -torch.inf
    return logits


def _is_done(
    finished: list[tuple[float, list[int]]], best: float, beams: int, step: int, max_tokens: int, length_penalty: float
) -> bool:
    if len(finished) >= beams:
        return True
    # log-probabilities are negative and only fall: the largest possible divisor gives an upper bound
    longest = max_tokens if length_penalty > 0 else step
    return bool(finished) and max(finished)[0] >= best / longest**length_penalty


def _until_end(row: list[int]) -> Hypothesis:
    if END in row:
        return Hypothesis(tuple(row[: row.index(END)]), True)
    return Hypothesis(tuple(row), False)
