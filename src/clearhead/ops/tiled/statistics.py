"""Statistics of every row and column from (query, key, log-sum-exp), in one pass over tiles."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.ops._precision import without_autocast
from clearhead.ops.native import functions as native
from clearhead.ops.native.tile_sums import NativeSums
from clearhead.ops.statistics import AttentionStatistics, StatisticsRequest, TopK
from clearhead.ops.tiled.logits import BlockLogits, FoldedCall, ScratchMemory, fold_heads
from clearhead.ops.tiled.schedule import iterate_tiles, max_tile_cells
from clearhead.ops.tiled.torch_sums import TorchSums


@without_autocast
def entropy_and_product(
    folded: FoldedCall, lse: Float[Tensor, "batch heads q_len"], columns: Float[Tensor, "batch kv_heads kv_len width"]
) -> tuple[Float[Tensor, "batch heads q_len"], Float[Tensor, "batch heads q_len width"]]:
    """Return the entropy of each row, and A · columns, in one pass over the tiles."""
    batch, kv_heads, group, q_len, _ = folded.shape
    log_weights = folded.minus_lse(fold_heads(lse, kv_heads))
    may_underflow = folded.underflow_bound()
    products = lse.new_zeros((batch, kv_heads, group, q_len, columns.shape[3]))
    scratch = ScratchMemory(max_tile_cells(folded.shape, folded.ranges, lse.device), lse)
    sums = _tile_sums(folded, lse, StatisticsRequest(entropy=True), scratch, keep_weights=True)
    for block, tiles in iterate_tiles(folded.shape, folded.ranges, lse.dtype, lse.device):
        logits = BlockLogits(log_weights, block)
        sums.start_block(logits, may_underflow(block))
        block_columns = columns[block.batch, block.kv_heads].flatten(0, 1).to(lse.dtype)  # [key_heads, kv_len, width]
        block_products = lse.new_zeros((*logits.query.shape[:2], columns.shape[3]))
        for tile in tiles:
            logs = logits.apply_bias_and_mask_(logits.products(tile, scratch.take(*logits.tile_shape(tile))), tile)
            block_products.baddbmm_(sums.add(logs, tile), block_columns[:, tile.keys])
        sums.end_block()
        products[block] = logits.unflatten_heads(block_products)
    assert sums.entropies is not None
    return sums.entropies.flatten(1, 2).to(lse.dtype), products.flatten(1, 2)


@without_autocast
def compute_statistics(
    folded: FoldedCall, lse: Float[Tensor, "batch heads q_len"], request: StatisticsRequest
) -> AttentionStatistics:
    """Compute every statistic of a request except pooling, in one pass over the tiles."""
    top = request.top
    batch, kv_heads, group, q_len, kv_len = folded.shape
    log_weights = folded.minus_lse(fold_heads(lse, kv_heads))
    may_underflow = folded.underflow_bound()
    rows_shape = (batch, kv_heads, group, q_len)

    members = None if request.spans is None else request.spans.members(batch, kv_len, lse)
    masses = None if members is None else lse.new_zeros((*rows_shape, members.shape[2]))
    best = lse.new_full((*rows_shape, top), -torch.inf)
    best_keys = torch.full_like(best, -1, dtype=torch.long)
    scratch = ScratchMemory(max_tile_cells(folded.shape, folded.ranges, lse.device), lse)
    needs_weights = request.entropy or request.received or request.distance or members is not None
    sums = _tile_sums(folded, lse, request, scratch, keep_weights=members is not None)
    for block, tiles in iterate_tiles(folded.shape, folded.ranges, lse.dtype, lse.device):
        logits = BlockLogits(log_weights, block)
        sums.start_block(logits, may_underflow(block))
        block_top = _Largest(top) if top else None
        for tile in tiles:
            logs = logits.apply_bias_and_mask_(logits.products(tile, scratch.take(*logits.tile_shape(tile))), tile)
            if block_top is not None:
                block_top.add(logits.unflatten_heads(logs), tile.keys)
            if not needs_weights:
                continue
            weights = sums.add(logs, tile)
            if masses is not None and members is not None:
                tile_members = members if members.shape[0] == 1 else members[block.batch]
                masses[block] += logits.unflatten_heads(weights) @ tile_members[:, None, None, tile.keys]
        if block_top is not None and block_top.parts:
            values, keys = block_top.merged()
            best[block][..., : values.shape[-1]], best_keys[block][..., : keys.shape[-1]] = values, keys
        sums.end_block()

    def unfold(statistic: Tensor | None) -> Tensor | None:
        return None if statistic is None else statistic.flatten(1, 2).to(lse.dtype)

    largest = TopK(best.exp().flatten(1, 2), best_keys.flatten(1, 2)) if top else None
    return AttentionStatistics(
        entropy=unfold(sums.entropies),
        received=unfold(sums.columns),
        distance=unfold(sums.distances),
        mass=unfold(masses),
        top=largest,
    )


def _tile_sums(
    folded: FoldedCall, lse: Tensor, request: StatisticsRequest, scratch: ScratchMemory, *, keep_weights: bool
) -> NativeSums | TorchSums:
    """Return what adds up the tiles of a call: functions in C++ if they support it, else torch."""
    if native.unsupported_reasons(lse, math.prod(folded.shape)):
        return TorchSums(folded, request, scratch)
    return NativeSums(folded, request, keep_weights=keep_weights)


class _Largest:
    """Largest log weights of a block of rows, collected tile by tile. A masked key is recorded as −1.

    torch.topk takes a microsecond per row, however short the row is. So several tiles are merged at a time.
    """

    TILES_PER_MERGE = 16

    def __init__(self, top: int) -> None:
        self.top = top
        self.parts: list[tuple[Tensor, Tensor]] = []

    def add(self, logs: Float[Tensor, "b k g rows keys"], keys: slice) -> None:
        values, indices = self._largest(logs)
        self.parts.append((values, torch.where(values > -torch.inf, indices + keys.start, -1)))
        if len(self.parts) == self.TILES_PER_MERGE:
            self.parts = [self.merged()]

    def merged(self) -> tuple[Tensor, Tensor]:
        if len(self.parts) == 1:
            return self.parts[0]
        values, keys = (torch.cat(part, dim=-1) for part in zip(*self.parts, strict=True))
        values, order = self._largest(values)
        return values, keys.gather(-1, order)

    def _largest(self, values: Float[Tensor, "*rows keys"]) -> tuple[Tensor, Tensor]:
        if self.top == 1:  # the first of equal values, as torch's argmax
            return values.max(dim=-1, keepdim=True)
        return values.topk(min(self.top, values.shape[-1]), dim=-1)
