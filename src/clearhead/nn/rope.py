"""Where a token stands, told to attention: rotary and sinusoidal positions, and the slopes of ALiBi."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead._utils.checks import check_choice, check_float, check_int, describe
from clearhead._utils.tensor_checks import check_float_tensor, check_int_tensor
from clearhead.nn.rope_scaling import Stretch

LAYOUTS = ("half", "interleaved")


@dataclass(frozen=True)
class Rotary:
    """Rotary positions (Su et al. 2021): each pair of columns turns by position · frequency.

    Args:
        base: pair i of `dims / 2` turns by base^(−2i / dims) radians per position.
        layout: which columns are a pair: "half" (i and i + dims / 2, as in Llama and most of Hugging Face) or
            "interleaved" (2i and 2i + 1, as in the paper and GPT-J).
        dims: how many of a head's leading columns turn; None for all.
        scaling: for texts longer than those trained on: `Stretch`, `Llama3` or `YaRN` of `clearhead.nn.rope_scaling`.

    Scores of turned queries and keys depend on the distance between positions only. Angles are computed in float64:
    in float32 they are off by 0.06 radians at a million tokens.

    >>> query = torch.randn(1, 8, 5, 64)
    >>> Rotary()(query, torch.arange(5)).shape
    torch.Size([1, 8, 5, 64])
    """

    base: float = 10_000.0
    layout: Literal["half", "interleaved"] = "half"
    dims: int | None = None
    scaling: Stretch | None = None

    def __post_init__(self) -> None:
        _check_base("Rotary: base", self.base)
        check_choice("Rotary: layout", self.layout, LAYOUTS)
        if self.dims is not None:
            dims = check_int("Rotary: dims", self.dims, least=2)
            if dims % 2:
                raise ValueError(f"Rotary: dims is {dims}; columns turn in pairs, expected an even number")
            object.__setattr__(self, "dims", dims)
        if self.scaling is not None and not isinstance(self.scaling, Stretch):
            raise TypeError(f"Rotary: scaling is {describe(self.scaling)}; expected Stretch, Llama3, YaRN or None")

    def turned(self, key_dim: int) -> int:
        """How many columns of a head of `key_dim` turn; an error if it cannot be."""
        if self.dims is None and key_dim % 2:
            raise ValueError(
                f"rope turns pairs of columns, but key_dim is {key_dim}; expected an even number (or Rotary(dims=…))"
            )
        if self.dims is not None and self.dims > key_dim:
            raise ValueError(f"rope turns dims={self.dims} columns, but key_dim is {key_dim}")
        return key_dim if self.dims is None else self.dims

    def frequencies(self, dims: int, device: torch.device | None = None) -> Float[Tensor, " pairs"]:
        """Radians per position of each pair, float64."""
        exponents = torch.arange(0, dims, 2, dtype=torch.float64, device=device) / -dims
        frequencies = self.base**exponents
        return frequencies if self.scaling is None else self.scaling.scaled(frequencies, self.base)

    def __call__(
        self, x: Float[Tensor, "batch heads n key_dim"], positions: Int[Tensor, "*batch n"]
    ) -> Float[Tensor, "batch heads n key_dim"]:
        """`x` with its tokens standing at `positions`: `[n]`, or `[batch, n]` for positions of each sequence's own."""
        x = check_float_tensor("x", x, "[batch, heads, n, key_dim]")
        if x.ndim != 4:
            raise ValueError(f"x has shape {tuple(x.shape)}; expected [batch, heads, n, key_dim]")
        positions = check_int_tensor("positions", positions)
        if positions.shape not in (x.shape[2:3], (1, x.shape[2]), (x.shape[0], x.shape[2])):
            expected = f"{(x.shape[2],)} or {(x.shape[0], x.shape[2])}"
            raise ValueError(f"positions has shape {tuple(positions.shape)}; expected {expected}")
        if positions.device != x.device:
            raise ValueError(f"positions is on {positions.device}, but x is on {x.device}; expected the same")
        dims = self.turned(x.shape[-1])
        angles = positions[..., None] * self.frequencies(dims, x.device)  # [*batch, n, pairs]
        if angles.ndim == 3:
            angles = angles[:, None]
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        amplitude = 1.0 if self.scaling is None else self.scaling.amplitude
        cos, sin = ((amplitude * turn(angles)).to(dtype) for turn in (torch.cos, torch.sin))
        head, rest = x[..., :dims].to(dtype), x[..., dims:]
        if self.layout == "half":
            left, right = head.chunk(2, dim=-1)
            turned = torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)
        else:
            left, right = head[..., 0::2], head[..., 1::2]
            turned = torch.stack([left * cos - right * sin, right * cos + left * sin], dim=-1).flatten(-2)
        turned = turned.to(x.dtype)
        return turned if dims == x.shape[-1] else torch.cat([turned, rest], dim=-1)


def sinusoidal(positions: int | Int[Tensor, "*n"], dim: int, *, base: float = 10_000.0) -> Float[Tensor, "*n dim"]:
    """Sinusoidal positions (Vaswani et al. 2017), float32: sines in the even columns, cosines in the odd ones.

    `positions` is how many, counted from 0, or the positions themselves.

    >>> sinusoidal(3, 4).round(decimals=2)
    tensor([[ 0.0000,  1.0000,  0.0000,  1.0000],
            [ 0.8400,  0.5400,  0.0100,  1.0000],
            [ 0.9100, -0.4200,  0.0200,  1.0000]])
    """
    _check_base("base", base)
    if isinstance(positions, Tensor):
        positions = check_int_tensor("positions", positions)
    else:
        positions = torch.arange(check_int("positions", positions, least=0))
    columns = torch.arange(check_int("dim", dim), device=positions.device)
    frequencies = base ** (-(columns - columns % 2).double() / dim)
    # a cosine is the sine a quarter turn ahead
    return torch.sin(positions[..., None] * frequencies + columns % 2 * (math.pi / 2)).float()


def alibi_slopes(heads: int) -> Float[Tensor, " heads"]:
    """The slopes of ALiBi (Press et al. 2022) for any number of heads; for `ALiBi(alibi_slopes(heads))`.

    2^(−8/h), 2^(−16/h), … for h heads where h is a power of two. Other counts take those of the power of two below,
    and then every other slope of the power of two above.

    >>> alibi_slopes(6).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    """
    heads = check_int("heads", heads, most=2**16)
    power = 2 ** (heads.bit_length() - 1)

    def geometric(count: int) -> list[float]:
        return [2.0 ** (-8.0 * (number + 1) / count) for number in range(count)]

    return torch.tensor(geometric(power) + geometric(2 * power)[0::2][: heads - power], dtype=torch.float32)


def _check_base(name: str, base: object) -> None:
    expected = "a finite number above 1"
    if check_float(name, base, expected) <= 1:
        raise ValueError(f"{name} is {base}; expected {expected}")
