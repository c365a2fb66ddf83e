"""`TorchSums`: entropies, distances and column sums of tiles, by torch functions."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.ops.statistics import StatisticsRequest
from clearhead.ops.tiled.logits import BlockLogits, FoldedCall, ScratchMemory, exp_
from clearhead.ops.tiled.products import few_products
from clearhead.ops.tiled.schedule import KeyTile


class TorchSums:
    """Entropies, distances and column sums of all tiles of a call, on any device and in any dtype.

    Args:
        folded: the call.
        request: statistics to compute.
        scratch: memory that holds the log weights of each tile, which `add` overwrites.
    """

    def __init__(self, folded: FoldedCall, request: StatisticsRequest, scratch: ScratchMemory) -> None:
        batch, kv_heads, group, q_len, kv_len = folded.shape
        heads, like = (batch, kv_heads, group), scratch.memory
        self.entropies = like.new_zeros((*heads, q_len)) if request.entropy else None
        self.distances = like.new_zeros((*heads, q_len)) if request.distance else None
        # columns add a sum from every band of rows; in float64 the rounding error does not grow with the bands
        self.columns = like.new_zeros((*heads, kv_len), dtype=torch.float64) if request.received else None
        self._folded, self._scratch = folded, scratch
        self._weights = torch.empty_like(like)
        self._shared = _Distances(folded) if request.distance and q_len else None

    def start_block(self, logits: BlockLogits, may_underflow: bool) -> None:
        """Begin a block of rows."""
        self._logits, self._may_underflow = logits, may_underflow
        self._ones = logits.query.new_ones((logits.shape[:3].numel(), 1, logits.shape[3]))
        self._row_entropies: list[Tensor] = []
        self._row_distances = None if self._shared is None else _RowDistances(self._shared, logits)
        self._column_sums: list[tuple[slice, Tensor]] = []

    def add(self, logs: Float[Tensor, "key_heads rows keys"], tile: KeyTile) -> Float[Tensor, "key_heads rows keys"]:
        """Add the log weights of a tile. Return its weights, which the next tile overwrites."""
        masked = self._folded.masked(tile)
        memory = self._weights[: logs.numel()].view(logs.shape)
        weights = exp_(logs, masked=masked, may_underflow=self._may_underflow, out=memory)
        by_head = weights.view(self._ones.shape[0], self._ones.shape[2], -1)
        if self.columns is not None:
            self._column_sums.append((tile.keys, torch.bmm(self._ones, by_head)))
        if self.entropies is not None:
            self._row_entropies.append(logs.mul_(weights).sum(dim=-1))
        if self._row_distances is not None:
            self._row_distances.add(by_head, tile.keys, spare=self._scratch)
        return weights

    def end_block(self) -> None:
        """Write the sums of a block of rows."""
        logits = self._logits
        if self.entropies is not None and self._row_entropies:
            self.entropies[logits.block] = -logits.unflatten_heads(_sum_parts(self._row_entropies))
        if self.distances is not None and self._row_distances is not None:
            self.distances[logits.block] = self._row_distances.total()
        if self.columns is not None:  # a view, added to in place
            _add_columns(self.columns[logits.block[:3]].flatten(0, 2).unsqueeze(1), self._column_sums)


def _sum_parts(parts: list[Tensor]) -> Tensor:
    """Add the sums of tiles. torch adds pairwise, so the rounding error does not grow with their number."""
    return torch.stack(parts).sum(dim=0)


def _add_columns(columns: Float[Tensor, "heads 1 kv_len"], parts: list[tuple[slice, Tensor]]) -> None:
    """Add the column sums of tiles in place, with one call for each run of adjacent tiles."""
    while parts:
        count = 1
        while count < len(parts) and parts[count][0].start == parts[count - 1][0].stop:
            count += 1
        run = parts[:count]
        columns[..., run[0][0].start : run[-1][0].stop] += torch.cat([sums for _, sums in run], dim=-1)
        parts = parts[count:]


class _Distances:
    """Tensors shared by all blocks for computing Σ weight · |position of query − key|.

    For keys left or right of all queries of a block, the distance is a term per row plus a term per key. Neither is
    negative, so a product with two columns, ones and the terms of the keys, suffices, without cancellation. Only keys
    between the block's first and last query need the distance of every cell, which all heads share.
    """

    def __init__(self, folded: FoldedCall) -> None:
        kv_len, key = folded.shape[4], folded.key
        self.kv_len = kv_len
        self.starts: list[int] = folded.positions[:, 0].tolist()
        up = torch.arange(kv_len + 1, device=key.device, dtype=key.dtype)
        self.up, self.down = (torch.stack([torch.ones_like(up), terms])[None] for terms in (up, up.flip(0)))
        self.between: dict[tuple[int, ...], Tensor] = {}  # distances for the current rows


class _RowDistances:
    def __init__(self, shared: _Distances, logits: BlockLogits) -> None:
        self.shared, self.logits = shared, logits
        starts = shared.starts if len(shared.starts) == 1 else shared.starts[logits.block.batch]
        lowest, highest = min(starts) + logits.block.rows.start, max(starts) + logits.block.rows.stop - 1
        # keys before `left` are left of every query, keys from `right` on are right of every query
        self.left, self.right = min(max(lowest, 0), shared.kv_len), min(max(highest + 1, 0), shared.kv_len)
        rows = (logits.shape[:3].numel(), logits.shape[3])
        self.near = [logits.query.new_zeros(rows)]
        zeros = logits.query.new_zeros((rows[0], 2, rows[1]))
        self.on_left, self.on_right = [zeros], [zeros]  # sums of weights, and of weights times the terms of their keys

    def add(self, weights: Float[Tensor, "heads rows keys"], keys: slice, spare: ScratchMemory) -> None:
        """Add the weights of a tile; `spare` is scratch memory of its size."""
        if keys.stop <= self.left:
            self._add_left(weights, keys)
        elif keys.start >= self.right:
            self._add_right(weights, keys)
        else:
            left, right = max(self.left, keys.start), min(self.right, keys.stop)
            if left > keys.start:
                self._add_left(weights[..., : left - keys.start], slice(keys.start, left))
            if right < keys.stop:
                self._add_right(weights[..., right - keys.start :], slice(right, keys.stop))
            between = weights[..., left - keys.start : right - keys.start].view(*self.logits.shape, -1)
            products = torch.mul(between, self._distance(slice(left, right)), out=spare.take(*between.shape))
            self.near.append(products.sum(dim=-1).view(self.near[0].shape))

    def _add_left(self, weights: Float[Tensor, "heads rows keys"], keys: slice) -> None:
        skipped = self.shared.kv_len - self.left
        self.on_left.append(few_products(weights, self.shared.down[..., skipped + keys.start : skipped + keys.stop]))

    def _add_right(self, weights: Float[Tensor, "heads rows keys"], keys: slice) -> None:
        skipped = 1 - self.right
        self.on_right.append(few_products(weights, self.shared.up[..., skipped + keys.start : skipped + keys.stop]))

    def total(self) -> Float[Tensor, "b k g rows"]:
        near, on_left, on_right = (_sum_parts(parts) for parts in (self.near, self.on_left, self.on_right))
        near = (near + on_left[:, 1] + on_right[:, 1]).view(self.logits.shape)
        on_left, on_right = (sums[:, 0].view(self.logits.shape) for sums in (on_left, on_right))
        positions = self.logits.positions()[:, None, None, :]
        return near + on_left * (positions - self.left) + on_right * (self.right - 1 - positions)

    def _distance(self, keys: slice) -> Tensor:
        block, between = self.logits.block, self.shared.between
        key = (block.batch.start, block.rows.start, keys.start, keys.stop)
        if key not in between:
            if between and next(iter(between))[:2] != key[:2]:
                between.clear()
            between[key] = self.logits.distance(keys)
        return between[key]
