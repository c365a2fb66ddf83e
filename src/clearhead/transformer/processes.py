"""Several processes that train one model together, as torchrun starts them: each takes its share of every batch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, distributed

from clearhead.transformer.batching import Batch
from clearhead.transformer.tokens import PAD

T = TypeVar("T")


def is_first() -> bool:
    """Whether this process is the only one, or the one that writes and speaks for all."""
    return int(os.environ.get("RANK", 0)) == 0


@dataclass(frozen=True)
class Processes:
    """This process's number, and how many there are."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def share(self, batch: Batch) -> Batch:
        """Every `world`-th sentence; one that does not count where there are not enough."""
        if self.rank < batch.source.shape[0]:
            return batch.map(lambda tensor: tensor[self.rank :: self.world])
        first = batch.map(lambda tensor: tensor[:1])
        return first._replace(expected=first.expected.new_full(first.expected.shape, PAD))

    def summed(self, tensor: Tensor) -> Tensor:
        """Over all processes."""
        if self.world == 1:
            return tensor
        total = tensor.clone()
        distributed.all_reduce(total)
        return total

    def any(self, condition: bool, device: torch.device) -> bool:
        """Whether it holds in any process."""
        return condition if self.world == 1 else bool(self.summed(torch.tensor(int(condition), device=device)))

    def same(self, value: T) -> T:
        """What the first process has, for all."""
        if self.world == 1:
            return value
        box = [value]
        distributed.broadcast_object_list(box)
        return box[0]


@contextmanager
def processes(device: torch.device) -> Iterator[Processes]:
    """This one alone, or together with those that torchrun says there are."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    if world == 1:
        yield Processes()
        return
    if device.type == "cuda" and device.index is None:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))  # a GPU for each
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Processes(distributed.get_rank(), world)
    finally:
        distributed.destroy_process_group()
