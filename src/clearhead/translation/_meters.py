"""Running measurements of training: mean loss and tokens per second."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.distributed.process_group import ProcessGroup


class MeanLoss:
    """Running mean of the loss. Reading `value` synchronizes the device and is a collective operation."""

    def __init__(self, process_group: ProcessGroup) -> None:
        self.total, self.count, self.process_group = torch.zeros(()), 0, process_group

    def add(self, loss: Float[Tensor, ""]) -> None:
        """Add the loss of a step."""
        self.total, self.count = self.total.to(loss.device) + loss, self.count + 1

    @property
    def value(self) -> float:
        """Mean loss over the steps and the processes."""
        return float(self.process_group.all_reduce(self.total)) / max(1, self.count) / self.process_group.world_size


class TokenRate:
    """Tokens per second, excluding the time spent in `paused`."""

    def __init__(self) -> None:
        self.start_time, self.tokens = time.perf_counter(), 0

    def add(self, tokens: int) -> None:
        """Add the tokens of a step."""
        self.tokens += tokens

    @property
    def value(self) -> float:
        """Tokens per second since the start."""
        return self.tokens / (time.perf_counter() - self.start_time)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time spent in a `with` block."""
        pause_start = time.perf_counter()
        yield
        self.start_time += time.perf_counter() - pause_start
