"""Reads that the statistics of a layer need: from the lazy matrix, or from its weights as a plain tensor."""

from __future__ import annotations

import functools
from functools import cached_property
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.ops.statistics import AttentionStatistics
from clearhead.weights.matrix import AttentionWeights
from clearhead.weights.statistics import observe_with_entropy


class LayerReader(Protocol):
    """Values of one layer of one sequence, for all of its heads."""

    def entropy(self) -> Float[Tensor, "heads q_len"]: ...
    def distance(self) -> Float[Tensor, "heads q_len"]: ...
    def top_keys(self) -> Int[Tensor, "heads q_len"]: ...
    def received(self, key: int) -> Float[Tensor, " heads"]: ...
    def diagonal(self, offset: int) -> Float[Tensor, "heads q_len"]: ...
    def column(self, key: int) -> Float[Tensor, "heads q_len"]: ...
    def cells(self, queries: Int[Tensor, " pairs"], keys: Int[Tensor, " pairs"]) -> Float[Tensor, "heads pairs"]: ...


class LazyLayer:
    """Reader of a lazy matrix. Most values come from one pass over it, which needs no memory for the weights."""

    def __init__(self, weights: AttentionWeights, *, received: bool) -> None:
        self._weights, self._received = weights, received

    @cached_property
    def _observed(self) -> AttentionStatistics:
        return observe_with_entropy(self._weights, distance=True, received=self._received, top=1)

    def entropy(self) -> Float[Tensor, "heads q_len"]:
        return self._observed.entropy[0]

    def distance(self) -> Float[Tensor, "heads q_len"]:
        return self._observed.distance[0]

    def top_keys(self) -> Int[Tensor, "heads q_len"]:
        return self._observed.top.keys[0, :, :, 0]

    def received(self, key: int) -> Float[Tensor, " heads"]:
        return self._observed.received[0, :, key]

    def diagonal(self, offset: int) -> Float[Tensor, "heads q_len"]:
        return self._weights.diagonal(offset)[0]

    def column(self, key: int) -> Float[Tensor, "heads q_len"]:
        return self._weights[0, :, :, key]

    def cells(self, queries: Int[Tensor, " pairs"], keys: Int[Tensor, " pairs"]) -> Float[Tensor, "heads pairs"]:
        return self._weights[0, :, queries, keys]


class DenseLayer:
    """Reader of weights in memory, which is several times as fast for short texts.

    Args:
        weights: weights of the layer. Queries start at position 0.
    """

    def __init__(self, weights: Float[Tensor, "heads q_len kv_len"]) -> None:
        self._weights = weights

    def entropy(self) -> Float[Tensor, "heads q_len"]:
        return torch.special.entr(self._weights).sum(dim=-1)

    def distance(self) -> Float[Tensor, "heads q_len"]:
        distances = _distances(*self._weights.shape[1:], self._weights.dtype, self._weights.device)
        return torch.stack([torch.linalg.vecdot(head, distances) for head in self._weights])

    def top_keys(self) -> Int[Tensor, "heads q_len"]:
        top = self._weights.max(dim=-1)
        return torch.where(top.values > 0, top.indices, -1)  # a row without visible keys

    def received(self, key: int) -> Float[Tensor, " heads"]:
        return self._weights[:, :, key].sum(dim=-1, dtype=torch.float64)

    def diagonal(self, offset: int) -> Float[Tensor, "heads q_len"]:
        return self._weights.diagonal(offset, dim1=1, dim2=2)

    def column(self, key: int) -> Float[Tensor, "heads q_len"]:
        return self._weights[:, :, key]

    def cells(self, queries: Int[Tensor, " pairs"], keys: Int[Tensor, " pairs"]) -> Float[Tensor, "heads pairs"]:
        return self._weights[:, queries, keys]


@functools.lru_cache(maxsize=1)  # every layer of a stack has the same distances
def _distances(q_len: int, kv_len: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "q_len kv_len"]:
    rows, keys = (torch.arange(length, device=device, dtype=dtype) for length in (q_len, kv_len))
    return (rows[:, None] - keys).abs_()
