"""One attention call, as every backend and every statistic reads it. `posing.py` checks the arguments and makes one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.ops.alibi import ALiBi
from clearhead.ops.masks import LoweredMask, Mask, PrecomputedMask, query_positions

PLAIN_TENSORS = (Tensor, torch.nn.Parameter)  # other types of tensors, such as fake ones, are traced
# the last lowered form of each mask that lives, and the shape and place it was lowered for
_LOWERED: WeakKeyDictionary[Mask, tuple[tuple, LoweredMask]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """A = softmax(softcap(scale · Q Kᵀ) + bias, over the keys the mask allows); output A V."""

    query: Float[Tensor, "batch heads q_len key_dim"]
    key: Float[Tensor, "batch kv_heads kv_len key_dim"]
    value: Float[Tensor, "batch kv_heads kv_len value_dim"] | None
    mask: Mask | None
    bias: Float[Tensor, "#batch #heads #q_len #kv_len"] | ALiBi | None
    scale: float
    softcap: float | None
    sinks: Float[Tensor, " heads"] | None
    dropout: float
    query_start: int | Int[Tensor, " batch"]
    seed: Int[Tensor, " 2"] | None  # of dropout: a weight's fate follows from it and from (batch, head, query, key)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the matrix: batch, heads, q_len, kv_len."""
        batch, heads, q_len, _ = self.query.shape
        return batch, heads, q_len, self.key.shape[2]

    @property
    def group(self) -> int:
        """How many query heads read each key head: head h reads key head h // group."""
        return self.query.shape[1] // self.key.shape[1]

    @property
    def compute_dtype(self) -> torch.dtype:
        """What scores, log-sum-exp and statistics are computed in."""
        return compute_dtype(self.query)

    @property
    def slopes(self) -> Float[Tensor, " heads"] | None:
        return self.bias.slopes if isinstance(self.bias, ALiBi) else None

    @property
    def tensor_bias(self) -> Float[Tensor, "#batch #heads #q_len #kv_len"] | None:
        return None if isinstance(self.bias, ALiBi) else self.bias

    def positions(self) -> Int[Tensor, "batch q_len"]:
        """Where each query stands among the keys."""
        return query_positions(self.query.shape[2], self.key.shape[2], self.query_start, self.query.device)

    def lower(self) -> LoweredMask:
        """The mask in the form kernels read; without a mask, nothing. Kept for the next call with the same mask."""
        mask, start, kv_len = self.mask, self.query_start, self.key.shape[2]
        if mask is None:
            return LoweredMask()
        if isinstance(start, Tensor) or mask.tensors or not is_cacheable(self.query):
            return mask.lower(self.positions(), kv_len)
        device = self.query.device
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        place = (self.query.shape[2], kv_len, start, device, stream, mask.version)
        kept = _LOWERED.get(mask)
        if kept is None or kept[0] != place:
            # what is kept must serve a call with gradients too
            with torch.inference_mode(False):
                kept = (place, mask.lower(self.positions(), kv_len))
            _LOWERED[mask] = kept
        return kept[1]

    def differentiable(self) -> bool:
        """Whether a gradient may flow into the scores."""
        tensors = (self.query, self.key, self.tensor_bias, self.slopes, self.sinks)
        return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)

    def trains(self) -> bool:
        """Whether a gradient may flow into anything."""
        values = self.value is not None and self.value.requires_grad
        return self.differentiable() or (values and torch.is_grad_enabled())

    def part(self, batch: Sequence[int], heads: Sequence[int]) -> AttentionCall:
        """The same for some sequences and heads, by their numbers. Views where they lie evenly, else copies of keys."""
        all_batch, all_heads, *_ = self.shape
        lowered = self.lower()
        distinct = kv_heads_of(heads, self.group)

        def cut(tensor: Tensor | None, numbers: Sequence[int]) -> Tensor | None:
            return None if tensor is None else _take(_take(tensor, 0, batch, all_batch), 1, numbers, all_heads)

        bias = self.bias
        if isinstance(bias, ALiBi):
            bias = ALiBi(_take(bias.slopes, 0, heads, all_heads))
        elif bias is not None:
            bias = cut(bias, heads)
        mask = self.mask
        if mask is not None:
            ranges = None if lowered.ranges is None else _take(lowered.ranges, 2, batch, all_batch)
            mask = PrecomputedMask(LoweredMask(ranges, cut(lowered.dense, heads)), mask)
        start = self.query_start
        kv_heads = self.key.shape[1]
        return replace(
            self,
            query=_take(_take(self.query, 0, batch, all_batch), 1, heads, all_heads),
            key=_take(_take(self.key, 0, batch, all_batch), 1, distinct, kv_heads),
            value=None if self.value is None else _take(_take(self.value, 0, batch, all_batch), 1, distinct, kv_heads),
            mask=mask,
            bias=bias,
            sinks=None if self.sinks is None else _take(self.sinks, 0, heads, all_heads),
            query_start=_take(start, 0, batch, all_batch) if isinstance(start, Tensor) else start,
        )

    def rows(self, rows: slice) -> AttentionCall:
        """The same for some of the queries (a slice with step 1)."""
        lowered = self.lower().rows(rows)
        bias = self.bias
        if isinstance(bias, Tensor) and bias.shape[2] > 1:
            bias = bias[:, :, rows]
        mask = None if self.mask is None else PrecomputedMask(lowered, self.mask)
        start = self.query_start + rows.start
        return replace(self, query=self.query[:, :, rows], mask=mask, bias=bias, query_start=start)

    def map(self, function: Callable[[Tensor], Tensor]) -> AttentionCall:
        """The same with every tensor replaced: for another device, or without a gradient."""

        def apply(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else function(tensor)

        bias = ALiBi(function(self.bias.slopes)) if isinstance(self.bias, ALiBi) else apply(self.bias)
        mask = self.mask
        if mask is not None:
            lowered = self.lower()
            mask = PrecomputedMask(LoweredMask(apply(lowered.ranges), apply(lowered.dense)), mask)
        return replace(
            self,
            query=function(self.query),
            key=function(self.key),
            value=apply(self.value),
            mask=mask,
            bias=bias,
            sinks=apply(self.sinks),
            query_start=function(self.query_start) if isinstance(self.query_start, Tensor) else self.query_start,
        )

    def with_scores(self, scores: Float[Tensor, "batch heads q_len kv_len"]) -> AttentionCall:
        """The same matrix with its scores given outright: queries and keys of width 0, the scores as their bias."""
        query, key = (scores.new_empty((*tensor.shape[:3], 0)) for tensor in (self.query, self.key))
        mask = None if self.mask is None else PrecomputedMask(LoweredMask(), self.mask)  # it is in the scores already
        return replace(self, query=query, key=key, mask=mask, bias=scores, scale=1.0, softcap=None)


def is_cacheable(query: Tensor) -> bool:
    """Whether what is made of a mask now may be read later: not what is traced, nor what belongs to a CUDA graph."""
    if torch.compiler.is_compiling() or type(query) not in PLAIN_TENSORS:
        return False
    return query.device.type != "cuda" or not torch.cuda.is_current_stream_capturing()


def compute_dtype(query: Tensor) -> torch.dtype:
    """float64 for float64, float32 for everything else."""
    return torch.float64 if query.dtype == torch.float64 else torch.float32


def _take(tensor: Tensor, dim: int, numbers: Sequence[int], length: int) -> Tensor:
    """`tensor` at some places of an axis of `length`: a view where they are consecutive. An axis of 1 broadcasts."""
    if tensor.shape[dim] == 1 and length > 1:
        return tensor
    first, count = numbers[0], len(numbers)
    if list(numbers) == list(range(first, first + count)):
        return tensor.narrow(dim, first, count)
    return tensor.index_select(dim, torch.tensor(numbers, device=tensor.device))


def kv_heads_of(heads: Sequence[int], group: int) -> list[int]:
    """The key heads that some query heads need, repeated where needed, so that each serves as many of them."""
    runs = [(key_head, len(list(run))) for key_head, run in groupby(head // group for head in heads)]
    share = math.gcd(*(count for _, count in runs))
    return [key_head for key_head, count in runs for _ in range(count // share)]
