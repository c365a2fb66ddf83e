"""An example's matrices as numbers alone, from its own weights or from whatever a text printed in their place.

Leading axes broadcast, so that many variations of a matrix are followed through at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

from clearhead.explain._claims import JOINT, LEARNED
from clearhead.explain._matrices import Where
from clearhead.explain.example import Example

_READ = {
    "slice": ("input",),
    "query": ("slice", "query_weight"),
    "key": ("slice", "key_weight"),
    "value": ("slice", "value_weight"),
    "scores": ("query", "key"),
    "scaled": ("scores",),
    "masked": ("scaled", "mask"),
    "weights": ("masked",),
    "head_output": ("weights", "value"),
    "concat": ("head_output",),
    "output": ("concat", "output_weight"),
}


@cache
def sources(name: str) -> frozenset[str]:
    """Every matrix that is read, directly or not, on the way to one."""
    read = _READ.get(name, ())
    return frozenset(read).union(*(sources(earlier) for earlier in read))


class Calculation:
    """All that can be claimed, computed when it is asked for. A NaN in what is given stands for the computed number."""

    def __init__(self, example: Example, given: Mapping[Where, Tensor]) -> None:
        self.example, self.given = example, given
        self.known: dict[Where, Tensor] = {}

    def matrix(self, name: str, head: int) -> Tensor:
        """By the name of a step, or mask, query_weight and so on; `head` is ignored where there is one for all."""
        where = (name, None if name in JOINT else head)
        if where not in self.known:
            given = self.given.get(where)
            if given is None:
                self.known[where] = self._computed(name, head)
            else:
                blank = given.isnan()
                self.known[where] = torch.where(blank, self._computed(name, head), given) if blank.any() else given
        return self.known[where]

    def _computed(self, name: str, head: int) -> Tensor:
        example = self.example
        if name in LEARNED:
            weight = example.weights[name.removesuffix("_weight")]
            return weight if name in JOINT else weight[head]
        if name == "input":
            return example.x
        if name == "mask":
            return example.added_mask()
        if name == "concat":
            outputs = [self.matrix("head_output", number) for number in range(example.heads)]
            return torch.cat(torch.broadcast_tensors(*outputs), dim=-1)  # cat alone does not broadcast
        read = [self.matrix(earlier, head) for earlier in _READ[name]]
        if name == "slice":
            width = example.x.shape[1] // (example.heads if example.split == "slice" else 1)
            start = head * width if example.split == "slice" else 0
            return read[0][..., start : start + width]
        if name == "scores":
            return read[0] @ read[1].mT
        if name == "scaled":
            return read[0] / math.sqrt(example.weights["query"].shape[-1])
        if name == "masked":
            return read[0] + read[1]
        if name == "weights":
            some = (read[0] > -torch.inf).any(dim=-1, keepdim=True)
            return torch.softmax(torch.where(some, read[0], 0.0), dim=-1) * some
        return read[0] @ read[1]
