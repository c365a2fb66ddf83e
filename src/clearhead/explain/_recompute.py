"""Recomputation of an example's matrices, from its weights or from numbers printed in the text.

Leading axes broadcast, so that many variations of a matrix are computed at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

from clearhead.explain._claims import BIASES, KEY_HEAD_MATRICES, LEARNED_MATRICES, SHARED_MATRICES
from clearhead.explain.example import Example
from clearhead.explain.steps import StepKey
from clearhead.nn import Rotary

OPERANDS = {
    "input": ("embedding", "positions"),
    "slice": ("input",),
    "key_input": ("slice", "input", "memory"),  # some of them, which depends on the example
    "query": ("slice", "query_weight", "query_bias"),
    "key": ("key_input", "key_weight", "key_bias"),
    "value": ("key_input", "value_weight", "value_bias"),
    "scores": ("query", "key"),
    "scaled": ("scores",),
    "masked": ("scaled", "mask"),
    "weights": ("masked",),
    "head_output": ("weights", "value"),
    "concat": ("head_output",),
    "output": ("concat", "output_weight", "output_bias"),
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

        `head` counts key heads for the matrices of keys and values. It is ignored for matrices shared by all heads.
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

    def for_head(self, name: str, head: int) -> Tensor:
        """Return a matrix that a query head uses. Heads of a group share keys and values."""
        return self.matrix(name, self.example.key_head(head) if name in KEY_HEAD_MATRICES else head)

    def projected(
        self,
        name: str,
        head: int,
        weight: Tensor,
        *,
        source: Tensor | None = None,
        bias: Tensor | None = None,
        rotated: bool = True,
    ) -> Tensor:
        """Return Q, K or V as computed with a weight. The input and the bias are those of the head by default."""
        values = (self.matrix(OPERANDS[name][0], head) if source is None else source) @ weight
        if name in self.example.biases:
            values = values + (self.matrix(f"{name}_bias", head) if bias is None else bias)
        rope = self.example.rope if rotated and name != "value" else None
        return values if rope is None else _rotate(rope, values)

    def _compute(self, name: str, head: int) -> Tensor:
        example = self.example
        if name in LEARNED_MATRICES:
            weight = example.weights[name.removesuffix("_weight")]
            return weight if name in SHARED_MATRICES else weight[head]
        if name in BIASES:
            return example.bias(name.removesuffix("_bias"))[0 if name in SHARED_MATRICES else head][None]
        if name in ("embedding", "positions", "memory", "mask"):
            return self._stated(name)
        if name == "key_input":
            return self._key_input(head)
        if name == "concat":
            outputs = [self.matrix("head_output", index) for index in range(example.heads)]
            return torch.cat(torch.broadcast_tensors(*outputs), dim=-1)  # cat alone does not broadcast
        if name in ("query", "key", "value"):
            return self.projected(name, head, self.matrix(f"{name}_weight", head))
        operands = [self.for_head(operand, head) for operand in OPERANDS[name]]
        if name == "input":
            return operands[0] if example.parts.positions is None else operands[0] + operands[1]
        if name == "slice":
            return _columns(operands[0], head, example.heads) if example.split == "slice" else operands[0]
        if name == "scores":
            return operands[0] @ operands[1].mT
        if name == "scaled":
            return operands[0] / math.sqrt(example.d_k) if example.scale is None else operands[0] * example.scale
        if name == "masked":
            return operands[0] + operands[1]
        if name == "weights":
            return row_softmax(operands[0])
        if name == "head_output":
            return operands[0] @ operands[1]
        output = operands[0] @ operands[1]
        return output + operands[2] if name in example.biases else output

    def _stated(self, name: str) -> Tensor:
        """Return a matrix that is stated in the file."""
        example = self.example
        if name == "mask":
            return example.additive_mask()
        matrix = {"embedding": example.parts.rows, "positions": example.parts.positions, "memory": example.memory}[name]
        return torch.zeros_like(example.x) if matrix is None else matrix

    def _key_input(self, head: int) -> Tensor:
        """Return the columns of X or Z that a key head reads."""
        example = self.example
        if example.memory is None and example.kv_heads == example.heads:
            return self.matrix("slice", head)
        source = self.matrix("input" if example.memory is None else "memory", 0)
        return _columns(source, head, example.kv_heads) if example.split == "slice" else source


def _columns(matrix: Tensor, index: int, count: int) -> Tensor:
    width = matrix.shape[-1] // count
    return matrix[..., index * width : (index + 1) * width]


def _rotate(rope: Rotary, matrix: Tensor) -> Tensor:
    positions = torch.arange(matrix.shape[-2])
    batch = matrix.reshape(-1, 1, *matrix.shape[-2:])  # Rotary takes [batch, heads, n, key_dim]
    return rope(batch, positions).reshape(matrix.shape)


def row_softmax(scores: Tensor) -> Tensor:
    """Return the softmax of each row. A row of −∞ becomes 0."""
    has_keys = (scores > -torch.inf).any(dim=-1, keepdim=True)
    return torch.softmax(torch.where(has_keys, scores, 0.0), dim=-1) * has_keys
