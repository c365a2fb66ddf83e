"""Cost model of attention over ranks: floating-point operations and bytes sent, of one layer and one rank."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerShape:
    """Sizes of a layer and of its input."""

    tokens: int
    d_model: int
    heads: int
    kv_heads: int
    key_dim: int
    itemsize: int = 2  # bytes per value
    causal: bool = True

    @property
    def computed_cells(self) -> float:
        """Number of weights of a head's matrix that are computed."""
        return self.tokens * (self.tokens + 1) / 2 if self.causal else float(self.tokens) ** 2


@dataclass(frozen=True)
class Cost:
    """Cost of one rank. All ranks have the same work, so it is what everyone waits for."""

    flops: float
    bytes_sent: float

    def seconds(self, flops_per_second: float, bytes_per_second: float) -> float:
        """Return the time if computing and sending do not overlap."""
        return self.flops / flops_per_second + self.bytes_sent / bytes_per_second


def tensor_parallel_cost(shape: LayerShape, ranks: int, *, backward: bool = False) -> Cost:
    """Return the cost of `parallelize_heads`: each rank has some heads; the outputs of W_O are summed over all ranks.

    Backward: the same again and 1.5 times the attention, twice the projections, and the gradient of the input is summed
    after each of the three projections. Gradients of key projections that ranks share are left out.
    """
    kv_share = max(1 / ranks, 1 / shape.kv_heads)  # ranks that read the same key head each compute it
    projections = _projection_flops(shape, shape.tokens, kv_share, 1 / ranks)
    attention = _attention_flops(shape) / ranks
    hidden_state = shape.tokens * shape.d_model * shape.itemsize
    all_reduce = 2 * (ranks - 1) / ranks * hidden_state  # in a ring
    if backward:
        return Cost(2 * projections + 2.5 * attention, 3 * all_reduce)
    return Cost(projections + attention, all_reduce)


def context_parallel_cost(shape: LayerShape, ranks: int, *, backward: bool = False) -> Cost:
    """Return the cost of `context_parallel_attention`: each rank has some tokens and gets all keys and values.

    Backward, their gradients are sent back.
    """
    attention = _attention_flops(shape) / ranks
    projections = _projection_flops(shape, shape.tokens / ranks, 1, 1)
    keys_and_values = 2 * shape.tokens * shape.kv_heads * shape.key_dim * shape.itemsize
    all_gather = (ranks - 1) / ranks * keys_and_values  # in a ring, once around
    if backward:
        return Cost(2 * projections + 2.5 * attention, all_gather)
    return Cost(projections + attention, all_gather)


def _attention_flops(shape: LayerShape) -> float:
    """Return the operations of Q Kᵀ and A V."""
    return 2 * 2 * shape.computed_cells * shape.heads * shape.key_dim


def _projection_flops(shape: LayerShape, tokens: float, kv_share: float, share: float) -> float:
    """Return the operations of W_Q and W_O for a share of the heads, and of W_K and W_V for one of the key heads."""
    heads = 2 * shape.heads * share + 2 * shape.kv_heads * kv_share
    return 2 * tokens * shape.d_model * shape.key_dim * heads
