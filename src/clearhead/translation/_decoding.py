"""Writing a translation token by token: greedily, or with the best few beginnings at once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from clearhead._utils.checks import check_int
from clearhead.recording.recording import Address
from clearhead.translation.model import Transformer
from clearhead.translation.tokenizer import END, PAD, START, UNKNOWN


@dataclass(frozen=True)
class Hypothesis:
    """Tokens of a translation, without the start and the end, and whether it came to an end by itself."""

    tokens: tuple[int, ...]
    ended: bool


@torch.inference_mode()
def greedy(
    model: Transformer,
    source: Int[Tensor, "batch source"],
    lengths: Int[Tensor, " batch"] | None = None,
    *,
    most: int = 128,
    ablate: Collection[Address] = (),
) -> list[Hypothesis]:
    """The likeliest next token, again and again, for all sources at once; at most `most` tokens."""
    batch = source.shape[0]
    memory, caches = model.encode(source, lengths, ablate=ablate), model.caches()
    last = source.new_full((batch, 1), START)
    ended = torch.zeros(batch, dtype=torch.bool, device=source.device)
    written = []
    for _ in range(check_int("most", most)):
        logits = model.decode(last, memory, caches=caches, ablate=ablate)[:, -1]
        last = _without_never(logits).argmax(dim=-1, keepdim=True)
        last = last.masked_fill(ended[:, None], PAD)
        written.append(last)
        ended |= last[:, 0] == END
        if bool(ended.all()):
            break
    return [_until_end(row) for row in torch.cat(written, dim=1).tolist()]


@torch.inference_mode()
def beam_search(
    model: Transformer,
    source: Int[Tensor, "batch source"],
    lengths: Int[Tensor, " batch"] | None = None,
    *,
    beams: int = 4,
    most: int = 128,
    length_penalty: float = 1.0,
) -> list[Hypothesis]:
    """The likeliest translation among those whose beginnings were always among the `beams` best.

    Log-probabilities are divided by (length)^length_penalty where finished ones are compared. A source is done when
    `beams` translations of it have ended, or nothing unfinished can still win.
    """
    if check_int("beams", beams) == 1:
        return greedy(model, source, lengths, most=most)
    batch, device = source.shape[0], source.device
    first = torch.arange(batch, device=device)[:, None]
    memory, caches = model.encode(source, lengths).select(first.expand(-1, beams).flatten()), model.caches()
    tokens = source.new_full((batch * beams, 1), START)
    # all beams start alike: but the first, they wait for the second step
    scores = torch.zeros(batch, beams, device=device)
    scores[:, 1:] = -torch.inf
    finished: list[list[tuple[float, list[int]]]] = [[] for _ in range(batch)]
    for step in range(1, check_int("most", most) + 1):
        logits = _without_never(model.decode(tokens[:, -1:], memory, caches=caches)[:, -1].float())
        vocabulary = logits.shape[-1]
        ahead = scores[..., None] + logits.log_softmax(dim=-1).view(batch, beams, vocabulary)
        # among twice as many there are enough that have not ended
        best, places = ahead.flatten(1).topk(2 * beams, dim=-1)
        parents, chosen = places // vocabulary, places % vocabulary
        ending = (chosen == END) & best.isfinite()  # where few tokens can be written, what only waits comes this far
        for number, rank in ending.nonzero().tolist():
            if rank < beams and len(finished[number]) < beams:
                row = tokens[number * beams + int(parents[number, rank]), 1:].tolist()
                finished[number].append((float(best[number, rank]) / step**length_penalty, row))
        going = best.masked_fill(ending, -torch.inf)
        scores, ranks = going.topk(beams, dim=-1)
        rows = (first * beams + parents.gather(1, ranks)).flatten()
        tokens = torch.cat([tokens[rows], chosen.gather(1, ranks).view(-1, 1)], dim=1)
        caches.select(rows.tolist())
        if all(_is_done(own, float(scores[n, 0]), beams, step, most, length_penalty) for n, own in enumerate(finished)):
            break
    found = []
    for number, own in enumerate(finished):
        if own:
            found.append(Hypothesis(tuple(max(own)[1]), True))
        else:
            found.append(Hypothesis(tuple(tokens[number * beams, 1:].tolist()), False))
    return found


def _without_never(logits: Tensor) -> Tensor:
    """Padding, start and the unknown are never written."""
    logits[..., [PAD, START, UNKNOWN]] = -torch.inf
    return logits


def _is_done(
    finished: list[tuple[float, list[int]]], best: float, beams: int, step: int, most: int, length_penalty: float
) -> bool:
    if len(finished) >= beams:
        return True
    # log-probabilities only fall; divided by the greatest length they fall least
    longest = most if length_penalty > 0 else step
    return bool(finished) and max(finished)[0] >= best / longest**length_penalty


def _until_end(row: list[int]) -> Hypothesis:
    if END in row:
        return Hypothesis(tuple(row[: row.index(END)]), True)
    return Hypothesis(tuple(row), False)
