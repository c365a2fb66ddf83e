"""`ALiBi`: a bias computed from positions, without an n × n tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead._utils.checks import check_int, describe
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
        if tensor.ndim != 1 or not len(tensor):
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected {expected}")
        if has_readable_values(tensor) and not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} has a value that is not finite; expected finite numbers")
        object.__setattr__(self, "slopes", tensor)

    @classmethod
    def unchecked(cls, slopes: Float[Tensor, " heads"]) -> ALiBi:
        """Build from slopes that were checked before: reading their values would synchronize with the GPU."""
        bias = object.__new__(cls)
        object.__setattr__(bias, "slopes", slopes)
        return bias

    def __repr__(self) -> str:
        first = ", ".join(f"{slope:.3g}" for slope in self.slopes[:4].tolist())
        return f"ALiBi([{first}{', …' if self.slopes.shape[0] > 4 else ''}])"


def alibi_slopes(heads: int) -> Float[Tensor, " heads"]:
    """Return the ALiBi slopes of Press et al. (2022) for any number of heads, as in `ALiBi(alibi_slopes(heads))`.

    If the number of heads h is a power of two, the slopes are 2^(−8/h), 2^(−16/h), …. Otherwise they are the slopes
    of the next lower power of two, followed by every other slope of the next higher one.

    Examples:
        >>> alibi_slopes(6).tolist()
        [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    """
    heads = check_int("heads", heads, most=2**16)
    power = 2 ** (heads.bit_length() - 1)

    def geometric(count: int) -> list[float]:
        return [2.0 ** (-8.0 * (index + 1) / count) for index in range(count)]

    return torch.tensor(geometric(power) + geometric(2 * power)[0::2][: heads - power], dtype=torch.float32)
