"""Sentences of like length together, so that little is padded; in an order that follows from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from clearhead.translation.tokenizer import PAD, START


class Ids(NamedTuple):
    """A sentence and its translation as numbers of tokens, both with their end."""

    source: list[int]
    target: list[int]


class Batch(NamedTuple):
    source: Int[Tensor, "batch source"]
    lengths: Int[Tensor, " batch"] | None  # of the sources; None where all are as long, and no mask is needed
    target: Int[Tensor, "batch target"]  # what the decoder reads: the start, and all but the last token
    expected: Int[Tensor, "batch target"]  # what it is to write after each; PAD where there is nothing

    def to(self, device: torch.device) -> Batch:
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The same change to every tensor there is."""
        lengths = None if self.lengths is None else change(self.lengths)
        return Batch(change(self.source), lengths, change(self.target), change(self.expected))

    def share(self, rank: int, world: int) -> Batch:
        """Every `world`-th sentence, for one of so many processes; one that does not count where there are too few."""
        if rank < self.source.shape[0]:
            return self.map(lambda tensor: tensor[rank::world])
        first = self.map(lambda tensor: tensor[:1])
        return first._replace(expected=first.expected.new_full(first.expected.shape, PAD))


def in_batches(pairs: Sequence[Ids], tokens: int, seed: object | None = None) -> list[list[int]]:
    """Numbers of pairs, batch by batch, each of about so many tokens with padding; shuffled unless seed is None.

    A batch ends where sources get longer, unless it is not even half full: most have sources of one length, and need
    no mask.
    """
    order = list(range(len(pairs)))
    drawn = random.Random(None if seed is None else repr(seed))
    if seed is not None:
        drawn.shuffle(order)
    order.sort(key=lambda number: (len(pairs[number].source), len(pairs[number].target)))
    batches: list[list[int]] = []
    batch: list[int] = []
    widest = 0
    for number in order:
        source, target = pairs[number]
        widest_then = max(widest, len(target))
        full = (len(source) + widest_then) * (len(batch) + 1) > tokens
        longer = bool(batch) and len(source) > len(pairs[batch[-1]].source)
        half = (len(source) + widest_then) * len(batch) * 2 > tokens
        if batch and (full or (longer and half)):
            batches.append(batch)
            batch, widest_then = [], len(target)
        batch.append(number)
        widest = widest_then
    if batch:
        batches.append(batch)
    if seed is not None:
        drawn.shuffle(batches)
    return batches


def collate(pairs: Sequence[Ids]) -> Batch:
    lengths = [len(pair.source) for pair in pairs]
    return Batch(
        _padded([pair.source for pair in pairs]),
        None if min(lengths) == max(lengths) else torch.tensor(lengths),
        _padded([[START, *pair.target[:-1]] for pair in pairs]),
        _padded([pair.target for pair in pairs]),
    )


def padded(rows: Sequence[list[int]], device: torch.device) -> tuple[Int[Tensor, "batch n"], Tensor | None]:
    """Rows as one tensor, and their lengths if they differ."""
    lengths = [len(row) for row in rows]
    same = min(lengths) == max(lengths)
    return _padded(rows).to(device), None if same else torch.tensor(lengths, device=device)


def _padded(rows: Sequence[list[int]]) -> Int[Tensor, "batch n"]:
    filled = np.full((len(rows), max(map(len, rows))), PAD)  # torch takes ten times as long for nested lists
    for place, row in enumerate(rows):
        filled[place, : len(row)] = row
    return torch.from_numpy(filled)
