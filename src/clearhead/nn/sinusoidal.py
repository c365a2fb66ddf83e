"""`sinusoidal`: the position encoding of the original Transformer."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from clearhead._utils.checks import check_int
from clearhead._utils.tensor_checks import check_float_dtype, check_int_tensor
from clearhead.nn.rope import check_base


def sinusoidal(
    positions: int | Integer[Tensor, "*n"],
    dim: int,
    *,
    base: float = 10_000.0,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "*n dim"]:
    """Return sinusoidal position encodings (Vaswani et al. 2017): sines in even columns, cosines in odd ones.

    Args:
        positions: number of positions, counted from 0, or a tensor of positions.
        dim: number of columns.
        base: base of the geometric progression of frequencies.
        dtype: dtype of the result (default: float32). All dtypes are computed in float64.

    Returns:
        A tensor with the shape of the positions and a last axis of size `dim`.

    Examples:
        >>> sinusoidal(3, 4).round(decimals=2)
        tensor([[ 0.0000,  1.0000,  0.0000,  1.0000],
                [ 0.8400,  0.5400,  0.0100,  1.0000],
                [ 0.9100, -0.4200,  0.0200,  1.0000]])
    """
    check_base("base", base)
    dtype = check_float_dtype("dtype", dtype) or torch.float32
    if isinstance(positions, Tensor):
        positions = check_int_tensor("positions", positions)
    else:
        positions = torch.arange(check_int("positions", positions, least=0))
    columns = torch.arange(check_int("dim", dim), device=positions.device)
    frequencies = base ** (-(columns - columns % 2).double() / dim)
    # cos(x) = sin(x + π/2)
    return torch.sin(positions[..., None] * frequencies + (columns % 2).double() * (math.pi / 2)).to(dtype)
