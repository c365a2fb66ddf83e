"""`SpanMasses`: attention of each row that falls on spans of keys, added up tile by tile."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from clearhead.ops.tiled.logits import BlockLogits, FoldedCall
from clearhead.ops.tiled.products import few_products
from clearhead.ops.tiled.schedule import KeyTile


class SpanMasses:
    """Sums of each row over spans of keys.

    Args:
        folded: the call.
        members: 1 for each key of a span, else 0.
    """

    def __init__(self, folded: FoldedCall, members: Float[Tensor, "#batch kv_len spans"]) -> None:
        self._members = members.mT.contiguous()
        batch, kv_heads, group, q_len, _ = folded.shape
        self._sums = members.new_zeros((batch, kv_heads, group, members.shape[2], q_len))

    def add(self, weights: Float[Tensor, "key_heads rows keys"], logits: BlockLogits, tile: KeyTile) -> None:
        """Add the weights of a tile."""
        block, (batch, kv_heads, group, rows) = logits.block, logits.shape
        heads = batch * kv_heads * group
        members = self._members[slice(None) if len(self._members) == 1 else block.batch, :, tile.keys]
        # copied: a tensor that broadcasts is multiplied in another order
        members = members.repeat_interleave(heads // len(members), dim=0)
        sums = few_products(weights.view(heads, rows, -1), members)
        self._sums[(*block[:3], slice(None), block.rows)] += sums.view(batch, kv_heads, group, -1, rows)

    def total(self) -> Float[Tensor, "batch kv_heads group q_len spans"]:
        """Return the sums over all tiles."""
        return self._sums.mT.contiguous()
