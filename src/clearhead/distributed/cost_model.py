"""What attention over ranks costs, by a model: floating-point operations and bytes sent, of one layer and one rank."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A layer and its text."""

    tokens: int
    d_model: int
    heads: int
    kv_heads: int
    key_dim: int
    itemsize: int = 2  # bytes of a number
    causal: bool = True

    @property
    def cells(self) -> float:
        """Of a head's matrix, those that are computed."""
        return self.tokens * (self.tokens + 1) / 2 if self.causal else float(self.tokens) ** 2


@dataclass(frozen=True)
class Cost:
    """Of one rank. Where all ranks have the same to do, that is what everyone waits for."""

    flops: float
    sent: float  # bytes

    def seconds(self, flops: float, bandwidth: float) -> float:
        """With so many operations a second and bytes a second out of each rank, one after the other."""
        return self.flops / flops + self.sent / bandwidth


def over_heads(shape: Shape, ranks: int, *, backward: bool = False) -> Cost:
    """`shard_heads`: each rank has some of the heads; what W_O gives is added up over all ranks.

    Backward: the same again and 1.5 times the attention, twice the projections, and the gradient of the input is added
    up after each of the three projections. Gradients of key projections that ranks share are left out.
    """
    narrow = max(1 / ranks, 1 / shape.kv_heads)  # of the key heads: ranks that share one all compute it
    projections = _projections(shape, shape.tokens, narrow, 1 / ranks)
    attention = _attention(shape) / ranks
    state = shape.tokens * shape.d_model * shape.itemsize
    all_reduce = 2 * (ranks - 1) / ranks * state  # in a ring
    if backward:
        return Cost(2 * projections + 2.5 * attention, 3 * all_reduce)
    return Cost(projections + attention, all_reduce)


def over_sequence(shape: Shape, ranks: int, *, backward: bool = False) -> Cost:
    """`sequence_attention`: each rank has some of the tokens, and gets the keys and values of all others.

    Backward their gradients go the way back.
    """
    attention = _attention(shape) / ranks
    projections = _projections(shape, shape.tokens / ranks, 1, 1)
    both = 2 * shape.tokens * shape.kv_heads * shape.key_dim * shape.itemsize
    sent = (ranks - 1) / ranks * both  # in a ring, once around
    if backward:
        return Cost(2 * projections + 2.5 * attention, sent)
    return Cost(projections + attention, sent)


def _attention(shape: Shape) -> float:
    """Q Kᵀ and A V."""
    return 2 * 2 * shape.cells * shape.heads * shape.key_dim


def _projections(shape: Shape, tokens: float, key_heads: float, heads: float) -> float:
    """Queries and the output of a share of the heads, keys and values of a share of the key heads."""
    own = 2 * shape.heads * heads + 2 * shape.kv_heads * key_heads
    return 2 * tokens * shape.d_model * shape.key_dim * own
