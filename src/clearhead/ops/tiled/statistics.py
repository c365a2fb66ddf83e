"""Statistics of every row and column from (query, key, log-sum-exp), in one pass over tiles."""

import math

from jaxtyping import Float
from torch import Tensor

from clearhead.ops._precision import without_autocast
from clearhead.ops.native import functions as native
from clearhead.ops.native.tile_sums import NativeSums
from clearhead.ops.native.topk import MAX_TOP, NativeTopK
from clearhead.ops.statistics import AttentionStatistics, StatisticsRequest, TopK
from clearhead.ops.tiled.logits import BlockLogits, FoldedCall, ScratchMemory, fold_heads
from clearhead.ops.tiled.schedule import iterate_tiles, max_tile_cells
from clearhead.ops.tiled.span_masses import SpanMasses
from clearhead.ops.tiled.torch_sums import TorchSums
from clearhead.ops.tiled.torch_topk import TorchTopK


@without_autocast
def entropy_and_product(
    folded: FoldedCall, lse: Float[Tensor, "batch heads q_len"], columns: Float[Tensor, "batch kv_heads kv_len width"]
) -> tuple[Float[Tensor, "batch heads q_len"], Float[Tensor, "batch heads q_len width"]]:
    """Return the entropy of each row, and A · columns, in one pass over the tiles."""
    batch, kv_heads, group, q_len, _ = folded.shape
    log_weights = folded.minus_lse(fold_heads(lse, kv_heads))
    may_underflow = folded.underflow_bound()
    products = lse.new_zeros((batch, kv_heads, group, q_len, columns.shape[3]))
    scratch = ScratchMemory(max_tile_cells(folded.shape, lse.device), lse)
    sums = _tile_sums(folded, lse, StatisticsRequest(entropy=True), scratch, keep_weights=True)
    for block, tiles in iterate_tiles(folded.shape, folded.ranges, lse.dtype, lse.device):
        logits = BlockLogits(log_weights, block)
        sums.start_block(logits, may_underflow(block))
        block_columns = columns[block.batch, block.kv_heads].flatten(0, 1).to(lse.dtype)  # [key_heads, kv_len, width]
        block_products = lse.new_zeros((*logits.query.shape[:2], columns.shape[3]))
        for tile in tiles:
            logs = logits.apply_bias_and_mask_(logits.products(tile, scratch.take(*logits.tile_shape(tile))), tile)
            weights = sums.add(logs, tile)
            assert weights is not None
            block_products.baddbmm_(weights, block_columns[:, tile.keys])
        sums.end_block()
        products[block] = logits.unflatten_heads(block_products)
    assert sums.entropies is not None
    return sums.entropies.flatten(1, 2).to(lse.dtype), products.flatten(1, 2)


@without_autocast
def compute_statistics(
    folded: FoldedCall, lse: Float[Tensor, "batch heads q_len"], request: StatisticsRequest
) -> AttentionStatistics:
    """Compute every statistic of a request except pooling, in one pass over the tiles."""
    batch, kv_heads, _, _, kv_len = folded.shape
    log_weights = folded.minus_lse(fold_heads(lse, kv_heads))
    may_underflow = folded.underflow_bound()
    masses = None if request.spans is None else SpanMasses(folded, request.spans.members(batch, kv_len, lse))
    scratch = ScratchMemory(max_tile_cells(folded.shape, lse.device), lse)
    needs_weights = request.entropy or request.received or request.distance or masses is not None
    sums = _tile_sums(folded, lse, request, scratch, keep_weights=masses is not None)
    largest = _topk(folded, lse, request.top) if request.top else None
    for block, tiles in iterate_tiles(folded.shape, folded.ranges, lse.dtype, lse.device):
        logits = BlockLogits(log_weights, block)
        sums.start_block(logits, may_underflow(block))
        if largest is not None:
            largest.start_block(logits)
        for tile in tiles:
            logs = logits.apply_bias_and_mask_(logits.products(tile, scratch.take(*logits.tile_shape(tile))), tile)
            if largest is not None:
                largest.add(logs, tile)
            if not needs_weights:
                continue
            weights = sums.add(logs, tile)
            if masses is not None and weights is not None:
                masses.add(weights, logits, tile)
        sums.end_block()
        if largest is not None:
            largest.end_block()

    def unfold(statistic: Tensor | None) -> Tensor | None:
        return None if statistic is None else statistic.flatten(1, 2).to(lse.dtype)

    return AttentionStatistics(
        entropy=unfold(sums.entropies),
        received=unfold(sums.columns),
        distance=unfold(sums.distances),
        mass=None if masses is None else unfold(masses.total()),
        top=None if largest is None else TopK(largest.values.exp().flatten(1, 2), largest.keys.flatten(1, 2)),
    )


def _tile_sums(
    folded: FoldedCall, lse: Tensor, request: StatisticsRequest, scratch: ScratchMemory, *, keep_weights: bool
) -> NativeSums | TorchSums:
    """Return the object that adds up tiles: by functions in C++ if they support it, else by torch."""
    if native.unsupported_reasons(lse, math.prod(folded.shape)):
        return TorchSums(folded, request, scratch)
    return NativeSums(folded, request, keep_weights=keep_weights)


def _topk(folded: FoldedCall, lse: Tensor, top: int) -> NativeTopK | TorchTopK:
    """Return the object that finds the largest log weights: by functions in C++ if they support it, else by torch."""
    if top > MAX_TOP or native.unsupported_reasons(lse, math.prod(folded.shape)):
        return TorchTopK(folded, top)
    return NativeTopK(folded, top)
