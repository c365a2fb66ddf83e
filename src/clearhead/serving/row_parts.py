"""Rows of one request over many steps, in tensors that all requests of a step share at first."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

STEPS = 64  # after so many, the rows of a request are copied


class StepValue(NamedTuple):
    """Values of one request in a tensor that all requests of a step share. It is sliced later."""

    values: Tensor
    row: int

    def part(self) -> Tensor:
        return self.values[self.row]

    @property
    def nbytes(self) -> int:
        """Memory of this request's values."""
        return self.values.nbytes // len(self.values)


class RowParts:
    """Rows of one request, in the order of the steps.

    Slicing each step for each request would take longer than computing it. Without the copies, a long request would
    keep the tensors of all requests that ran in its steps.
    """

    def __init__(self) -> None:
        self._joined: list[Tensor] = []
        self._steps: list[StepValue] = []

    def add(self, values: Tensor | StepValue) -> None:
        """Add rows [rows, ...], or the row of one request in a step."""
        if isinstance(values, StepValue):
            self._steps.append(values)
            if len(self._steps) == STEPS:
                self._join()
        else:
            self._join()
            self._joined.append(values)

    def all(self) -> Tensor:
        """Return all rows [rows, ...]; there is at least one."""
        self._join()
        return torch.cat(self._joined)

    def __len__(self) -> int:
        return len(self._joined) + len(self._steps)

    def _join(self) -> None:
        if self._steps:
            self._joined.append(torch.stack([value.part() for value in self._steps]))
            self._steps = []
