"""Batches of sentences of similar length, so that little is padded; in an order that follows from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from clearhead.translation.tokenizer import PAD, START


class TokenIds(NamedTuple):
    """Token ids of a sentence and of its translation, both with their end."""

    source: list[int]
    target: list[int]


class Batch(NamedTuple):
    """Padded tensors of several sentences and their translations."""

    source: Int[Tensor, "batch source"]
    lengths: Int[Tensor, " batch"] | None  # of the sources; None where all are as long, and no mask is needed
    target: Int[Tensor, "batch target"]  # what the decoder reads: the start, and all but the last token
    expected: Int[Tensor, "batch target"]  # what it is to write after each; PAD where there is nothing

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """Apply a function to every tensor."""
        lengths = None if self.lengths is None else function(self.lengths)
        return Batch(function(self.source), lengths, function(self.target), function(self.expected))

    def shard(self, rank: int, world_size: int) -> Batch:
        """Return every `world_size`-th sentence, from `rank` on; a rank without one gets a sentence of padding."""
        if rank < self.source.shape[0]:
            return self.map(lambda tensor: tensor[rank::world_size])
        first = self.map(lambda tensor: tensor[:1])
        return first._replace(expected=first.expected.new_full(first.expected.shape, PAD))


def batch_indices(pairs: Sequence[TokenIds], max_tokens: int, seed: object | None = None) -> list[list[int]]:
    """Return the indices of the pairs in each batch of at most `max_tokens` tokens with padding.

    A pair that is longer gets a batch to itself. Batches are shuffled unless seed is None. A batch ends where sources
    get longer, unless it is not even half full: most have sources of one length, and need no mask.
    """
    order = list(range(len(pairs)))
    rng = random.Random(None if seed is None else repr(seed))
    if seed is not None:
        rng.shuffle(order)
    order.sort(key=lambda index: (len(pairs[index].source), len(pairs[index].target)))
    batches: list[list[int]] = []
    batch: list[int] = []
    max_target = 0
    for index in order:
        source, target = pairs[index]
        new_max_target = max(max_target, len(target))
        full = (len(source) + new_max_target) * (len(batch) + 1) > max_tokens
        longer = bool(batch) and len(source) > len(pairs[batch[-1]].source)
        half_full = (len(source) + new_max_target) * len(batch) * 2 > max_tokens
        if batch and (full or (longer and half_full)):
            batches.append(batch)
            batch, new_max_target = [], len(target)
        batch.append(index)
        max_target = new_max_target
    if batch:
        batches.append(batch)
    if seed is not None:
        rng.shuffle(batches)
    return batches


def collate(pairs: Sequence[TokenIds]) -> Batch:
    """Return pairs as one batch."""
    lengths = [len(pair.source) for pair in pairs]
    return Batch(
        _pad([pair.source for pair in pairs]),
        None if min(lengths) == max(lengths) else torch.tensor(lengths),
        _pad([[START, *pair.target[:-1]] for pair in pairs]),
        _pad([pair.target for pair in pairs]),
    )


def pad_rows(
    rows: Sequence[list[int]], device: torch.device
) -> tuple[Int[Tensor, "batch n"], Int[Tensor, " batch"] | None]:
    """Return rows as one tensor, and their lengths if they differ."""
    lengths = [len(row) for row in rows]
    same = min(lengths) == max(lengths)
    return _pad(rows).to(device), None if same else torch.tensor(lengths, device=device)


def _pad(rows: Sequence[list[int]]) -> Int[Tensor, "batch n"]:
    padded = np.full((len(rows), max(map(len, rows))), PAD)  # torch takes ten times as long for nested lists
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return torch.from_numpy(padded)
