"""Products of tiles and a few columns, and of the transposed matrix and a tensor."""

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.ops._precision import without_autocast
from clearhead.ops.tiled.logits import FoldedCall, fold_heads
from clearhead.ops.tiled.sweep import iterate_weights


@without_autocast
def transposed_product(
    folded: FoldedCall, lse: Float[Tensor, "batch heads q_len"], rows: Float[Tensor, "batch heads q_len width"]
) -> Float[Tensor, "batch heads kv_len width"]:
    """Return Aᵀ · rows for each head, in the dtype of the logits."""
    batch, kv_heads, group, _, kv_len = folded.shape
    given = fold_heads(rows.to(lse.dtype), kv_heads)
    result = lse.new_zeros((batch, kv_heads, group, kv_len, rows.shape[3]))
    for block, tile, weights in iterate_weights(folded, lse):
        part = result[block[:3]][..., tile.keys, :]
        part += torch.bmm(weights.flatten(0, 2).mT, given[block].flatten(0, 2)).view(part.shape)
    return result.flatten(1, 2)


def few_products(
    weights: Float[Tensor, "heads rows keys"], columns: Float[Tensor, "#heads columns keys"]
) -> Float[Tensor, "heads columns rows"]:
    """Return the products of a tile and a few columns.

    MKL takes several times as long for `weights @ columns.mT`, and multiplies by one column in a single thread.
    """
    return torch.bmm(columns.expand(weights.shape[0], -1, -1), weights.mT)
