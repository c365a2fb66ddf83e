"""Operations of a layer whose numbers are no matrices of its calculation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from clearhead.nn import MultiHeadAttention, Rotary


@dataclass(frozen=True, eq=False)
class LayerOptions:
    """Rotation, norms and softcap, which formulas name as RoPE, RMSNorm and tanh."""

    rope: Rotary | None = None  # of queries and keys, by their positions counted from 0
    query_norm: nn.RMSNorm | None = None
    key_norm: nn.RMSNorm | None = None
    softcap: float | None = None

    @staticmethod
    def of(layer: MultiHeadAttention) -> LayerOptions:
        """Return the options of a layer."""
        return LayerOptions(layer.rope, layer.query_norm, layer.key_norm, layer.softcap)
