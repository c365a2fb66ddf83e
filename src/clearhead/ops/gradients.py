"""Gradients of an attention call: of its parts, and of every weight in O(n) numbers."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from clearhead.ops.call import DIFFERENTIABLE


class Gradients(NamedTuple):
    """Gradients of the differentiable parts; None if a part is absent or needs no gradient."""

    query: Tensor
    key: Tensor
    value: Tensor | None
    tensor_bias: Tensor | None
    slopes: Tensor | None
    sinks: Tensor | None


assert Gradients._fields == DIFFERENTIABLE


class CellGradient(NamedTuple):
    """Gradient of a loss with respect to the weights: left[i] · right[j] + log[i] · ln A[i, j] + distance[i] · |i − j|.

    Products, column sums and sums over spans of keys give the first term, entropy the second, the attention distance
    the third. The gradient of score (i, j) is A[i, j] times the difference of this and `delta[i]`, because the softmax
    divides by the sum of its row.
    """

    delta: Float[Tensor, "batch heads q_len"]  # Σⱼ A[i, j] · gradient[i, j]
    left: Float[Tensor, "batch heads q_len width"] | None = None
    right: Float[Tensor, "batch kv_heads kv_len width"] | None = None
    log: Float[Tensor, "batch heads q_len"] | None = None
    distance: Float[Tensor, "batch heads q_len"] | None = None
