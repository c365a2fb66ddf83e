"""Greedy search and beam search: the state of a search, and its update by the logits of one step.

`advance` updates the state in place and never reads a value of a tensor, so a CUDA graph can contain it. Results are
read by `is_done`, which may skip steps: what it needs of a step stays in a log.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.translation.tokenizer import END, PAD, START, UNKNOWN


@dataclass(frozen=True)
class Hypothesis:
    """Tokens of a translation, without the start and end tokens."""

    tokens: tuple[int, ...]
    ended: bool  # False if the translation was cut at the token limit


class GreedySearch:
    """Search that chooses the most probable next token at each step.

    Args:
        batch: largest number of sources.
        max_steps: largest number of steps.
        device: device of the logits.
    """

    def __init__(self, batch: int, max_steps: int, device: torch.device) -> None:
        self.last = torch.full((batch, 1), START, device=device)  # input of the next step, [rows, 1]
        self._ended = torch.zeros(batch, dtype=torch.bool, device=device)
        self._written = torch.full((batch, max_steps), PAD, device=device)
        self._step = torch.zeros(1, dtype=torch.long, device=device)
        self._forbidden = _forbidden_tokens(device)
        self._batch = batch

    def start(self, batch: int, max_tokens: int, length_penalty: float) -> None:
        """Start again with a number of sources; further rows count as ended."""
        self.last.fill_(START)
        self._ended.zero_()
        self._ended[batch:] = True
        self._step.zero_()
        self._batch = batch

    def advance(self, logits: Float[Tensor, "rows vocabulary"]) -> None:
        """Choose the next tokens. Changes the logits in place."""
        best = logits.index_fill_(-1, self._forbidden, -torch.inf).argmax(dim=-1)
        best = best.masked_fill(self._ended, PAD)
        self._written.index_copy_(1, self._step, best[:, None])
        self._ended.logical_or_(best == END)
        self.last.copy_(best[:, None])
        self._step.add_(1)

    def is_done(self, steps: int) -> bool:
        """Return whether all translations have ended, after a number of steps. Synchronizes with a GPU."""
        return bool(self._ended.all())

    def hypotheses(self, steps: int) -> list[Hypothesis]:
        """Return the translations after a number of steps."""
        return [_until_end(row) for row in self._written[: self._batch, :steps].tolist()]


class BeamSearch:
    """Search that keeps the `beams` most probable unfinished translations of each source.

    Args:
        batch: largest number of sources.
        beams: number of beams, at least 2.
        max_steps: largest number of steps.
        device: device of the logits.
    """

    def __init__(self, batch: int, beams: int, max_steps: int, device: torch.device) -> None:
        self._beams = beams
        self.last = torch.full((batch * beams, 1), START, device=device)  # input of the next step, [rows, 1]
        self._scores = torch.zeros(batch, beams, device=device)
        self._step = torch.zeros(1, dtype=torch.long, device=device)
        self._first_rows = torch.arange(0, batch * beams, beams, device=device)[:, None]
        self._forbidden = _forbidden_tokens(device)
        # log of each step: log-probabilities of the best candidates, their indices among the tokens of all beams, and
        # the ranks of those that continue
        self._best = torch.zeros(max_steps, batch, 2 * beams, device=device)
        self._best_indices = torch.zeros(max_steps, batch, 2 * beams, dtype=torch.long, device=device)
        self._ranks = torch.zeros(max_steps, batch, beams, dtype=torch.long, device=device)
        self._vocabulary = 0  # known from the first logits
        self._finished = _FinishedTranslations(batch, beams, max_steps, 1.0)

    def start(self, batch: int, max_tokens: int, length_penalty: float) -> None:
        """Start again with a number of sources; further rows are computed and ignored."""
        self.last.fill_(START)
        # all beams start with the same token: the first step expands only the first beam, or it would give duplicates
        self._scores[:, 1:] = -torch.inf
        self._scores[:, 0] = 0.0
        self._step.zero_()
        self._finished = _FinishedTranslations(batch, self._beams, max_tokens, length_penalty)

    def advance(self, logits: Float[Tensor, "rows vocabulary"]) -> Int[Tensor, " rows"]:
        """Choose the next tokens; return the row that each row continues. Changes the logits in place."""
        log_probs = logits.float().index_fill_(-1, self._forbidden, -torch.inf).log_softmax(dim=-1)
        batch, vocabulary = self._scores.shape[0], logits.shape[-1]
        self._vocabulary = vocabulary
        candidates = log_probs.view(batch, self._beams, vocabulary).add_(self._scores[..., None])
        # each beam has one candidate that ends, so 2 * beams candidates contain at least `beams` that continue
        best, best_indices = candidates.flatten(1).topk(2 * self._beams, dim=-1)
        parents, tokens = best_indices // vocabulary, best_indices % vocabulary
        scores, ranks = best.masked_fill(tokens == END, -torch.inf).topk(self._beams, dim=-1)
        for log, value in ((self._best, best), (self._best_indices, best_indices), (self._ranks, ranks)):
            log.index_copy_(0, self._step, value[None])
        self._scores.copy_(scores)
        self.last.copy_(tokens.gather(1, ranks).view(-1, 1))
        self._step.add_(1)
        return (self._first_rows + parents.gather(1, ranks)).flatten()

    def is_done(self, steps: int) -> bool:
        """Return whether no source needs another step, after a number of steps. Synchronizes with a GPU."""
        new = slice(self._finished.steps, steps)
        best, indices, ranks = (log[new].cpu().numpy() for log in (self._best, self._best_indices, self._ranks))
        return self._finished.extend(best, indices // self._vocabulary, indices % self._vocabulary, ranks)

    def hypotheses(self, steps: int) -> list[Hypothesis]:
        """Return the translations after a number of steps."""
        self.is_done(steps)
        return self._finished.hypotheses()


class _FinishedTranslations:
    """Translations that have ended in a beam search, and the tokens of all beams, on the CPU.

    Arrays are NumPy's, because an operation on a small array takes a fraction of torch's time.
    """

    def __init__(self, batch: int, beams: int, max_tokens: int, length_penalty: float) -> None:
        self.steps = 0  # read so far
        self._beams, self._max_tokens, self._length_penalty = beams, max_tokens, length_penalty
        self._rows = np.empty((batch, beams, 0), dtype=np.int64)  # tokens of each beam
        self._ended: list[list[tuple[float, list[int]]]] = [[] for _ in range(batch)]
        self._done = False

    def extend(
        self,
        best: Float[np.ndarray, "steps batch candidates"],
        parents: Int[np.ndarray, "steps batch candidates"],
        tokens: Int[np.ndarray, "steps batch candidates"],
        ranks: Int[np.ndarray, "steps batch beams"],
    ) -> bool:
        """Add the log of further steps, until no source needs another step; return whether that is the case.

        Args:
            best: log-probabilities of the candidates of each step.
            parents: beams that the candidates continue.
            tokens: tokens of the candidates.
            ranks: candidates that become the beams of the next step.
        """
        for step in zip(best, parents, tokens, ranks, strict=True):
            if not self._done:
                self._add(*(log[: len(self._ended)] for log in step))
        return self._done

    def hypotheses(self) -> list[Hypothesis]:
        """Return the best translation of each source, or its best beam if no translation has ended."""
        return [
            Hypothesis(tuple(max(ended)[1]), True) if ended else Hypothesis(tuple(rows[0].tolist()), False)
            for ended, rows in zip(self._ended, self._rows, strict=True)
        ]

    def _add(self, best: np.ndarray, parents: np.ndarray, tokens: np.ndarray, ranks: np.ndarray) -> None:
        self.steps += 1
        # with a small vocabulary, topk also returns -inf candidates
        ending = (tokens == END) & np.isfinite(best)
        for index, rank in np.argwhere(ending[:, : self._beams]).tolist():
            if len(self._ended[index]) < self._beams:
                row = self._rows[index, parents[index, rank]].tolist()
                self._ended[index].append((float(best[index, rank]) / self.steps**self._length_penalty, row))
        sources = np.arange(len(ranks))[:, None]
        next_tokens = tokens[sources, ranks]
        self._rows = np.concatenate([self._rows[sources, parents[sources, ranks]], next_tokens[..., None]], axis=2)
        top_scores = np.where(next_tokens[:, 0] == END, -np.inf, best[sources[:, 0], ranks[:, 0]]).tolist()
        self._done = all(self._is_done(*source) for source in zip(self._ended, top_scores, strict=True))

    def _is_done(self, ended: list[tuple[float, list[int]]], top_score: float) -> bool:
        if len(ended) >= self._beams:
            return True
        # log-probabilities are negative and only fall: the largest possible divisor gives an upper bound
        longest = self._max_tokens if self._length_penalty > 0 else self.steps
        return bool(ended) and max(ended)[0] >= top_score / longest**self._length_penalty


def _forbidden_tokens(device: torch.device) -> Int[Tensor, " forbidden"]:
    """Return the tokens that are never written: padding, start and unknown."""
    return torch.tensor([PAD, START, UNKNOWN], device=device)


def _until_end(row: list[int]) -> Hypothesis:
    if END in row:
        return Hypothesis(tuple(row[: row.index(END)]), True)
    return Hypothesis(tuple(row), False)
