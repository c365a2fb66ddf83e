"""`ServedLayer`: the options of one attention layer of a served model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.ops.alibi import ALiBi
from clearhead.ops.call import AttentionCall
from clearhead.ops.masks import Causal, Mask, Window


@dataclass(frozen=True, eq=False)
class ServedLayer:
    """One attention layer of a served model, whose queries attend to themselves and to the keys before.

    Attributes:
        index: index of the layer, from 0, in the order in which the model runs its layers.
        name: name of the module.
        heads: number of query heads.
        kv_heads: number of key heads, each shared by a group of consecutive query heads.
        scale: factor of Q Kᵀ.
        softcap: bound of the scaled scores.
        window: number of keys that a query may attend to, its own included.
        slopes: ALiBi slope of each head.
        sinks: additional score of each head in the denominator of the softmax.
    """

    index: int
    name: str
    heads: int
    kv_heads: int
    scale: float
    softcap: float | None = None
    window: int | None = None
    slopes: Float[Tensor, " heads"] | None = None
    sinks: Float[Tensor, " heads"] | None = None

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.heads // self.kv_heads

    @property
    def mask(self) -> Mask:
        return Causal() if self.window is None else Window(before=self.window - 1)

    def call(
        self,
        query: Float[Tensor, "batch heads q_len key_dim"],
        key: Float[Tensor, "batch kv_heads kv_len key_dim"],
        value: Float[Tensor, "batch kv_heads kv_len value_dim"] | None = None,
        *,
        mask: Mask | None = None,
    ) -> AttentionCall:
        """Return the call of queries that are the last tokens of the keys. `mask` replaces that of the layer."""
        bias = None if self.slopes is None else ALiBi(self.slopes)
        sinks = None if self.sinks is None else self.sinks.to(torch.float32)
        start = key.shape[2] - query.shape[2]
        return AttentionCall(
            query, key, value, mask or self.mask, bias, self.scale, self.softcap, sinks, 0.0, start, None
        )

    def first_keys(self, positions: Int[Tensor, " rows"]) -> Int[Tensor, " rows"]:
        """Return the first key that a query at each position may attend to."""
        return torch.zeros_like(positions) if self.window is None else (positions + 1 - self.window).clamp(min=0)
