"""`Rotary`: rotary position embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from clearhead._utils.checks import check_choice, check_float, check_int, describe
from clearhead._utils.tensor_checks import check_float_tensor, check_int_tensor
from clearhead.nn.rope_scaling import RopeScaling

ROTARY_LAYOUTS = ("half", "interleaved")


@dataclass(frozen=True)
class Rotary:
    """Rotary position embedding (Su et al. 2021): each pair of columns is rotated by position · frequency.

    Args:
        base: pair i of `dims / 2` rotates by base^(−2i / dims) radians per position.
        layout: columns of a pair: "half" (i and i + dims / 2, as in Llama and most Hugging Face models) or
            "interleaved" (2i and 2i + 1, as in the paper and GPT-J).
        dims: number of leading columns of a head that are rotated. Default: all.
        scaling: context scaling for texts longer than in training: `LinearScaling`, `Llama3` or `YaRN`.

    Scores of rotated queries and keys depend only on the distance between positions. Angles are computed in float64,
    because in float32 their error is 0.06 radians at a million tokens.

    Examples:
        >>> query = torch.randn(1, 8, 5, 64)
        >>> Rotary()(query, torch.arange(5)).shape
        torch.Size([1, 8, 5, 64])
    """

    base: float = 10_000.0
    layout: Literal["half", "interleaved"] = "half"
    dims: int | None = None
    scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        check_base("Rotary: base", self.base)
        check_choice("Rotary: layout", self.layout, ROTARY_LAYOUTS)
        if self.dims is not None:
            dims = check_int("Rotary: dims", self.dims, least=2)
            if dims % 2:
                raise ValueError(f"Rotary: dims is {dims}; expected an even number, as columns are rotated in pairs")
            object.__setattr__(self, "dims", dims)
        if self.scaling is not None and not isinstance(self.scaling, RopeScaling):
            raise TypeError(
                f"Rotary: scaling is {describe(self.scaling)}; expected LinearScaling, Llama3, YaRN or None"
            )

    def rotary_dims(self, key_dim: int) -> int:
        """Return the number of rotated columns of a head of `key_dim` columns; raise if `key_dim` does not fit."""
        if self.dims is None and key_dim % 2:
            raise ValueError(
                f"rope rotates pairs of columns, but key_dim is {key_dim}; expected an even number (or Rotary(dims=…))"
            )
        if self.dims is not None and self.dims > key_dim:
            raise ValueError(f"rope rotates dims={self.dims} columns, but key_dim is {key_dim}")
        return key_dim if self.dims is None else self.dims

    def frequencies(self, dims: int, device: torch.device | None = None) -> Float[Tensor, " pairs"]:
        """Return the frequency of each pair of columns in radians per position, in float64."""
        exponents = torch.arange(0, dims, 2, dtype=torch.float64, device=device) / -dims
        frequencies = self.base**exponents
        return frequencies if self.scaling is None else self.scaling.scale_frequencies(frequencies, self.base)

    def __call__(
        self, x: Float[Tensor, "batch heads n key_dim"], positions: Integer[Tensor, "*batch n"]
    ) -> Float[Tensor, "batch heads n key_dim"]:
        """Rotate queries or keys `x` by their `positions`, `[n]` or `[batch, n]`."""
        x = check_float_tensor("x", x, "[batch, heads, n, key_dim]")
        if x.ndim != 4:
            raise ValueError(f"x has shape {tuple(x.shape)}; expected [batch, heads, n, key_dim]")
        positions = check_int_tensor("positions", positions)
        if positions.shape not in (x.shape[2:3], (1, x.shape[2]), (x.shape[0], x.shape[2])):
            expected = f"{(x.shape[2],)} or {(x.shape[0], x.shape[2])}"
            raise ValueError(f"positions has shape {tuple(positions.shape)}; expected {expected}")
        if positions.device != x.device:
            raise ValueError(f"positions is on {positions.device}, but x is on {x.device}; expected the same")
        dims = self.rotary_dims(x.shape[-1])
        angles = positions[..., None] * self.frequencies(dims, x.device)  # [*batch, n, pairs]
        if angles.ndim == 3:
            angles = angles[:, None]
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        attention_factor = 1.0 if self.scaling is None else self.scaling.attention_factor
        cos, sin = ((attention_factor * function(angles)).to(dtype) for function in (torch.cos, torch.sin))
        rotary, unrotated = x[..., :dims].to(dtype), x[..., dims:]
        if self.layout == "half":
            left, right = rotary.chunk(2, dim=-1)
            rotated = torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)
        else:
            left, right = rotary[..., 0::2], rotary[..., 1::2]
            rotated = torch.stack([left * cos - right * sin, right * cos + left * sin], dim=-1).flatten(-2)
        rotated = rotated.to(x.dtype)
        return rotated if dims == x.shape[-1] else torch.cat([rotated, unrotated], dim=-1)


def check_base(name: str, base: object) -> None:
    """Raise unless the base of the geometric progression of frequencies is a number above 1."""
    expected = "a finite number above 1"
    if check_float(name, base, expected) <= 1:
        raise ValueError(f"{name} is {base}; expected {expected}")
