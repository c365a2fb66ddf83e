"""Where a token looks, and who looks at it, across all heads of a stack."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from clearhead.recording.recording import Stack

Direction = Literal["from", "to"]
TOP = 5


@dataclass
class Looks:
    """The tokens with the largest weights, head by head: (token, weight), largest first."""

    heads: list[tuple[int, int, list[tuple[int, float]]]] = field(default_factory=list)  # layer, head, tokens
    everywhere: list[tuple[int, float]] = field(default_factory=list)  # by the mean over all heads


@torch.no_grad()
def looks(stack: Stack, direction: Direction, token: int) -> Iterator[Looks]:
    """Keys that a query looks at ("from"), or queries that look at a key ("to"): grows layer by layer."""
    found, total, count = Looks(), None, 0
    for layer, weights in enumerate(stack.layers):
        cells = weights[0, :, token] if direction == "from" else weights[0, :, :, token]  # [heads, tokens]
        cells = cells.cpu()
        found.heads += [(layer, head, _largest(own)) for head, own in enumerate(cells)]
        total = cells.double().sum(dim=0) if total is None else total + cells.double().sum(dim=0)
        count += len(cells)
        found.everywhere = _largest(total / count)
        yield found


def _largest(values: Tensor) -> list[tuple[int, float]]:
    top = values.topk(min(TOP, len(values)))
    return [(place, value) for place, value in zip(top.indices.tolist(), top.values.tolist(), strict=True) if value > 0]
