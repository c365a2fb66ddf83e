"""Iteration over the weights of a call, tile by tile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from clearhead.ops.tiled.logits import BlockLogits, FoldedCall, ScratchMemory, exp_, fold_heads
from clearhead.ops.tiled.schedule import KeyTile, QueryBlock, iterate_tiles, max_tile_cells


class WeightTile(NamedTuple):
    """Weights of a tile, in memory that the next tile overwrites."""

    block: QueryBlock
    tile: KeyTile
    weights: Float[Tensor, "batch kv_heads group rows keys"]


def iterate_weights(folded: FoldedCall, lse: Float[Tensor, "batch heads q_len"]) -> Iterator[WeightTile]:
    """Iterate over all tiles that contain a weight; keys that no query of a block may attend to are skipped."""
    log_weights = folded.minus_lse(fold_heads(lse, folded.shape[1]))
    may_underflow = folded.underflow_bound()
    scratch = ScratchMemory(max_tile_cells(folded.shape, lse.device), lse)
    for block, tiles in iterate_tiles(folded.shape, folded.ranges, lse.dtype, lse.device):
        logits = BlockLogits(log_weights, block)
        underflows = may_underflow(block)
        for tile in tiles:
            logs = logits.apply_bias_and_mask_(logits.products(tile, scratch.take(*logits.tile_shape(tile))), tile)
            weights = exp_(logs, masked=folded.masked(tile), may_underflow=underflows)
            yield WeightTile(block, tile, logits.unflatten_heads(weights))
