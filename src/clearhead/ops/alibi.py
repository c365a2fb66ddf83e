"""Biases with a formula: added to scores without an n × n tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead._utils.checks import describe
from clearhead._utils.tensor_checks import check_float_tensor, has_readable_values


@dataclass(frozen=True, eq=False, repr=False)
class ALiBi:
    """Attention with linear biases: −slope[h] · |position of query − key|, one slope per head (Press et al. 2022)."""

    slopes: Float[Tensor, " heads"]

    def __init__(self, slopes: Float[Tensor, " heads"] | Sequence[float]) -> None:
        name, expected = "ALiBi: slopes", "one slope per head, [heads]"
        try:
            tensor = slopes if isinstance(slopes, Tensor) else torch.tensor(slopes, dtype=torch.float32)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            raise TypeError(f"{name} is {describe(slopes)}; expected {expected}") from None
        tensor = check_float_tensor(name, tensor, expected)
        if tensor.ndim != 1:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected {expected}")
        if has_readable_values(tensor) and not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} has a value that is not finite; expected finite numbers")
        object.__setattr__(self, "slopes", tensor)

    def __repr__(self) -> str:
        shown = ", ".join(f"{slope:.3g}" for slope in self.slopes[:4].tolist())
        return f"ALiBi([{shown}{', …' if self.slopes.shape[0] > 4 else ''}])"
