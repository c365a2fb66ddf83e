"""Biases with a formula: added to scores without an n × n tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False, repr=False)
class ALiBi:
    """Attention with linear biases: −slope[h] · |position of query − key|, one slope per head (Press et al. 2022)."""

    slopes: Float[Tensor, " heads"]

    def __init__(self, slopes: Float[Tensor, " heads"] | Sequence[float]) -> None:
        tensor = slopes if isinstance(slopes, Tensor) else torch.tensor(slopes, dtype=torch.float32)
        if tensor.ndim != 1:
            raise ValueError(f"ALiBi: slopes has shape {tuple(tensor.shape)}; expected one slope per head, [heads]")
        if not tensor.is_floating_point():
            raise TypeError(f"ALiBi: slopes has dtype {tensor.dtype}; expected a float dtype")
        # inside a compiled graph, and on the meta device, values cannot be looked at
        known = not torch.compiler.is_compiling() and tensor.device.type != "meta"
        if known and not bool(tensor.isfinite().all()):
            raise ValueError("ALiBi: slopes has a value that is not finite")
        object.__setattr__(self, "slopes", tensor)

    def __repr__(self) -> str:
        shown = ", ".join(f"{slope:.3g}" for slope in self.slopes[:4].tolist())
        return f"ALiBi([{shown}{', …' if self.slopes.shape[0] > 4 else ''}])"
