"""`BlockDiagonalLinear`: a projection in which every head takes only its slice of the input."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class BlockDiagonalLinear(nn.Module):
    """Linear layer with a block-diagonal weight: slice s of the output depends only on slice s of the input.

    Only the blocks are stored, as in a grouped convolution: `weight` is `[out_features, in_features / slices]`, and the
    rows of slice s are its block. The result is that of an `nn.Linear` with `slices` times as many weights.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        slices: int,
        *,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.slices = in_features, out_features, slices
        self.weight = nn.Parameter(torch.empty((out_features, in_features // slices), device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None

    @property
    def blocks(self) -> Float[Tensor, "slices out in"]:
        """Matrices of the slices, as a view of `weight`."""
        return self.weight.unflatten(0, (self.slices, -1))

    def forward(self, x: Float[Tensor, "*batch in_features"]) -> Float[Tensor, "*batch out_features"]:
        if self.weight.shape[0] != self.out_features:
            rows = f"{self.weight.shape[0]} of its {self.out_features} rows"
            raise ValueError(
                f"weight has {rows}: slices cannot be sharded by columns, because each needs its slice of the input;"
                " shard layer.to_projected()"
            )
        sliced = x.unflatten(-1, (self.slices, -1))
        output = torch.einsum("...si,soi->...so", sliced, self.blocks).flatten(-2)
        return output if self.bias is None else output + self.bias

    def extra_repr(self) -> str:
        shape = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{shape}, slices={self.slices}, bias={self.bias is not None}"
