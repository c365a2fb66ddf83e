"""Cost model of distributed attention: floating-point operations and bytes sent, per layer and rank."""

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
        """Number of weights computed per head."""
        return self.tokens * (self.tokens + 1) / 2 if self.causal else float(self.tokens) ** 2


@dataclass(frozen=True)
class Cost:
    """Cost of one rank, equal for all ranks."""

    flops: float
    bytes_sent: float

    def seconds(self, flops_per_second: float, bytes_per_second: float) -> float:
        """Return the time if computation and communication do not overlap."""
        return self.flops / flops_per_second + self.bytes_sent / bytes_per_second


def tensor_parallel_cost(shape: LayerShape, ranks: int, *, backward: bool = False) -> Cost:
    """Return the cost of `parallelize_heads`: each rank has some heads, and the outputs of W_O are all-reduced.

    The backward pass computes 2.5 times the attention and twice the projections. It all-reduces the gradient of the
    input after each of the three projections. Gradients of key projections shared by several ranks are not counted.
    """
    kv_share = max(1 / ranks, 1 / shape.kv_heads)  # ranks that share a key head each compute it
    projections = _projection_flops(shape, shape.tokens, kv_share, 1 / ranks)
    attention = _attention_flops(shape) / ranks
    hidden_state = shape.tokens * shape.d_model * shape.itemsize
    all_reduce = 2 * (ranks - 1) / ranks * hidden_state  # in a ring
    if backward:
        return Cost(2 * projections + 2.5 * attention, 3 * all_reduce)
    return Cost(projections + attention, all_reduce)


def context_parallel_cost(shape: LayerShape, ranks: int, *, backward: bool = False) -> Cost:
    """Return the cost of `context_parallel_attention`: each rank has some tokens and gathers all keys and values.

    In the backward pass their gradients are reduce-scattered.
    """
    attention = _attention_flops(shape) / ranks
    projections = _projection_flops(shape, shape.tokens / ranks, 1, 1)
    keys_and_values = 2 * shape.tokens * shape.kv_heads * shape.key_dim * shape.itemsize
    all_gather = (ranks - 1) / ranks * keys_and_values  # in a ring
    if backward:
        return Cost(2 * projections + 2.5 * attention, all_gather)
    return Cost(projections + attention, all_gather)


def _attention_flops(shape: LayerShape) -> float:
    """Return the operations of Q Kᵀ and A V."""
    return 2 * 2 * shape.computed_cells * shape.heads * shape.key_dim


def _projection_flops(shape: LayerShape, tokens: float, kv_share: float, share: float) -> float:
    """Return the operations of W_Q and W_O for `share` of the heads, and of W_K and W_V for `kv_share` of theirs."""
    heads = 2 * shape.heads * share + 2 * shape.kv_heads * kv_share
    return 2 * tokens * shape.d_model * shape.key_dim * heads
