"""Recomputation of an example's matrices, from its weights or from numbers printed in the text.

Leading axes broadcast, so that many variations of a matrix are computed at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

from clearhead.explain._claims import LEARNED_MATRICES, SHARED_MATRICES
from clearhead.explain.example import Example
from clearhead.explain.steps import StepKey

OPERANDS = {
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
def source_matrices(name: str) -> frozenset[str]:
    """Return the names of all matrices that a matrix is computed from, directly or indirectly."""
    operands = OPERANDS.get(name, ())
    return frozenset(operands).union(*(source_matrices(operand) for operand in operands))


def calculation_order(name: str, head: int | None) -> tuple[int, int]:
    """Return a sort key for matrices in the order of the calculation: each after those that it is computed from."""
    step = next((step for step, operands in OPERANDS.items() if name in (step, *operands)), name)
    return [*OPERANDS].index(step) * 2 + (name == step), head or 0


class Recomputation:
    """Every matrix that can be claimed, computed on demand.

    A given matrix replaces the computed one, except where it is NaN.
    """

    def __init__(self, example: Example, given: Mapping[StepKey, Tensor]) -> None:
        self.example, self.given = example, given
        self._cache: dict[StepKey, Tensor] = {}

    def matrix(self, name: str, head: int) -> Tensor:
        """Return a matrix by name: a step, the mask, or a learned matrix such as query_weight.

        `head` is ignored for matrices shared by all heads.
        """
        key = (name, None if name in SHARED_MATRICES else head)
        if key not in self._cache:
            given = self.given.get(key)
            if given is None:
                self._cache[key] = self._compute(name, head)
            else:
                blank = given.isnan()
                self._cache[key] = torch.where(blank, self._compute(name, head), given) if blank.any() else given
        return self._cache[key]

    def _compute(self, name: str, head: int) -> Tensor:
        example = self.example
        if name in LEARNED_MATRICES:
            weight = example.weights[name.removesuffix("_weight")]
            return weight if name in SHARED_MATRICES else weight[head]
        if name == "input":
            return example.x
        if name == "mask":
            return example.additive_mask()
        if name == "concat":
            outputs = [self.matrix("head_output", index) for index in range(example.heads)]
            return torch.cat(torch.broadcast_tensors(*outputs), dim=-1)  # cat alone does not broadcast
        operands = [self.matrix(operand, head) for operand in OPERANDS[name]]
        if name == "slice":
            width = example.x.shape[1] // (example.heads if example.split == "slice" else 1)
            start = head * width if example.split == "slice" else 0
            return operands[0][..., start : start + width]
        if name == "scores":
            return operands[0] @ operands[1].mT
        if name == "scaled":
            return operands[0] / math.sqrt(example.weights["query"].shape[-1])
        if name == "masked":
            return operands[0] + operands[1]
        if name == "weights":
            return row_softmax(operands[0])
        return operands[0] @ operands[1]


def row_softmax(scores: Tensor) -> Tensor:
    """Return the softmax of each row. A row of −∞ becomes 0."""
    has_keys = (scores > -torch.inf).any(dim=-1, keepdim=True)
    return torch.softmax(torch.where(has_keys, scores, 0.0), dim=-1) * has_keys
