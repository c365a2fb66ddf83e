"""`TorchTopK`: largest log weights of each row, by torch functions."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.ops.tiled.logits import BlockLogits, FoldedCall
from clearhead.ops.tiled.schedule import KeyTile

# torch.topk takes a microsecond per row, however short the row is
TILES_PER_MERGE = 16


class TorchTopK:
    """Largest log weights of each row and their keys, collected tile by tile. A masked key is recorded as −1.

    Args:
        folded: the call.
        top: number of log weights of each row.
    """

    def __init__(self, folded: FoldedCall, top: int) -> None:
        self.values = folded.key.new_full((*folded.shape[:4], top), -torch.inf)
        self.keys = torch.full_like(self.values, -1, dtype=torch.long)
        self._top = top

    def start_block(self, logits: BlockLogits) -> None:
        """Begin a block of rows."""
        self._logits = logits
        self._parts: list[tuple[Tensor, Tensor]] = []

    def add(self, logs: Float[Tensor, "key_heads rows keys"], tile: KeyTile) -> None:
        """Add the log weights of a tile."""
        values, indices = self._largest(self._logits.unflatten_heads(logs))
        self._parts.append((values, torch.where(values > -torch.inf, indices + tile.keys.start, -1)))
        if len(self._parts) == TILES_PER_MERGE:
            self._parts = [self._merged()]

    def end_block(self) -> None:
        """Write the largest log weights of a block of rows."""
        if self._parts:
            values, keys = self._merged()
            block = self._logits.block
            self.values[block][..., : values.shape[-1]], self.keys[block][..., : keys.shape[-1]] = values, keys

    def _merged(self) -> tuple[Tensor, Tensor]:
        if len(self._parts) == 1:
            return self._parts[0]
        values, keys = (torch.cat(part, dim=-1) for part in zip(*self._parts, strict=True))
        values, order = self._largest(values)
        return values, keys.gather(-1, order)

    def _largest(self, values: Float[Tensor, "*rows keys"]) -> tuple[Tensor, Tensor]:
        if self._top == 1:  # the first of equal values, as torch's argmax
            return values.max(dim=-1, keepdim=True)
        return values.topk(min(self._top, values.shape[-1]), dim=-1)
