"""Batches of sentences of similar length, in a seeded order."""

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
    """Token ids of a sentence and of its translation, both with the end token."""

    source: list[int]
    target: list[int]


class Batch(NamedTuple):
    """Batch of sentences and their translations, padded on the right."""

    source: Int[Tensor, "batch source"]
    lengths: Int[Tensor, " batch"] | None  # lengths of the sources; None if all are equal: no mask is needed
    target: Int[Tensor, "batch target"]  # input of the decoder: the start token, and all tokens but the last
    expected: Int[Tensor, "batch target"]  # next token after each token of `target`

    def to(self, device: torch.device) -> Batch:
        """Copy the batch to a device."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """Apply a function to every tensor."""
        lengths = None if self.lengths is None else function(self.lengths)
        return Batch(function(self.source), lengths, function(self.target), function(self.expected))

    def shard(self, rank: int, world_size: int) -> Batch:
        """Return every `world_size`-th sentence, starting with `rank`.

        A rank without a sentence gets one whose expected tokens are all padding.
        """
        if rank < self.source.shape[0]:
            return self.map(lambda tensor: tensor[rank::world_size])
        first = self.map(lambda tensor: tensor[:1])
        return first._replace(expected=first.expected.new_full(first.expected.shape, PAD))


def batch_indices(pairs: Sequence[TokenIds], max_tokens: int, seed: object | None = None) -> list[list[int]]:
    """Return the indices of the pairs in each batch.

    A batch has at most `max_tokens` tokens, including padding; a longer pair is a batch by itself. Batches are
    shuffled unless `seed` is None. A batch that is at least half full ends where the sources get longer: most batches
    then have sources of one length, and need no mask.
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
    """Pad pairs to a batch."""
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
    """Pad rows to one tensor; return it and the lengths of the rows, or None if all lengths are equal."""
    lengths = [len(row) for row in rows]
    same = min(lengths) == max(lengths)
    return _pad(rows).to(device), None if same else torch.tensor(lengths, device=device)


def _pad(rows: Sequence[list[int]]) -> Int[Tensor, "batch n"]:
    padded = np.full((len(rows), max(map(len, rows))), PAD)  # torch.tensor is ten times slower on nested lists
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return torch.from_numpy(padded)
