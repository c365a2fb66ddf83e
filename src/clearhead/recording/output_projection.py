"""`OutputProjection`: a reference to the output projection W_O of one layer of a live model."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead._utils.checks import check_int
from clearhead._utils.torch_internals import version_of

_MAX_PROJECTED = 2**24  # numbers of projected values computed at once


@dataclass(frozen=True, eq=False)
class OutputProjection:
    """Output projection W_O of one attention layer, as a reference to the model's parameter and not a copy.

    Attributes:
        weight: W_O. Its rows are the heads, one after the other.
        heads: number of heads.
    """

    weight: Float[Tensor, "heads_value_dim output_dim"] = field(repr=False)
    heads: int
    _version: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rows = self.weight.shape[0]
        if rows % check_int("heads", self.heads):
            raise ValueError(f"OutputProjection: weight has {rows} rows; expected a multiple of {self.heads} heads")
        object.__setattr__(self, "_version", _version(self.weight))

    @property
    def value_dim(self) -> int:
        """Width of the values of one head."""
        return self.weight.shape[0] // self.heads

    @property
    def is_unchanged(self) -> bool:
        """False if the parameter was changed in place, as by training, after this reference was made."""
        return _version(self.weight) == self._version

    def of_head(self, head: int) -> Float[Tensor, "value_dim output_dim"]:
        """Return the rows of one head, as a view."""
        return self.weight.detach()[head * self.value_dim : (head + 1) * self.value_dim]

    @torch.no_grad()
    def value_norms(self, value: Float[Tensor, "1 kv_heads kv_len value_dim"]) -> Float[Tensor, "heads kv_len"]:
        """Return ‖v W_O‖ of each head and key. Computed in float32, or in float64 for float64 values."""
        dtype = torch.float64 if value.dtype == torch.float64 else torch.float32
        _, kv_heads, kv_len, width = value.shape
        matrices = self.weight.detach().to(value.device, dtype).reshape(self.heads, width, -1)
        if kv_len > 4 * width:
            # ‖v W‖ = ‖v Rᵀ‖ with the QR decomposition Wᵀ = Q R, so a long text is multiplied by few columns
            exact = dtype if value.device.type == "mps" else torch.float64
            matrices = torch.linalg.qr(matrices.mT.to(exact), mode="r").R.mT.to(dtype)
        norms = torch.empty(self.heads, kv_len, dtype=dtype, device=value.device)
        step = max(1, _MAX_PROJECTED // matrices.shape[2])
        for head, matrix in enumerate(matrices):
            vectors = value[0, head * kv_heads // self.heads]
            for start in range(0, kv_len, step):
                rows = vectors[start : start + step].to(dtype)
                norms[head, start : start + step] = torch.linalg.vector_norm(rows @ matrix, dim=1)
        return norms


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else version_of(tensor)  # inference tensors have no version counter
