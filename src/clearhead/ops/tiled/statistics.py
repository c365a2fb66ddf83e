"""Statistics of every row and column from (query, key, log-sum-exp), in one pass over tiles."""

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.ops._precision import without_autocast
from clearhead.ops.statistics import AttentionStatistics, StatisticsRequest, TopK
from clearhead.ops.tiled.logits import BlockLogits, FoldedCall, ScratchMemory, exp_, fold_heads
from clearhead.ops.tiled.schedule import iterate_tiles, max_tile_cells


@without_autocast
def entropy_and_product(
    folded: FoldedCall, lse: Float[Tensor, "batch heads q_len"], columns: Float[Tensor, "batch kv_heads kv_len width"]
) -> tuple[Float[Tensor, "batch heads q_len"], Float[Tensor, "batch heads q_len width"]]:
    """Return the entropy of each row, and A · columns, in one pass over the tiles."""
    batch, kv_heads, group, q_len, _ = folded.shape
    log_weights = folded.minus_lse(fold_heads(lse, kv_heads))
    may_underflow = folded.underflow_bound()
    entropies = lse.new_zeros((batch, kv_heads, group, q_len))
    products = lse.new_zeros((*entropies.shape, columns.shape[3]))
    cells = max_tile_cells(folded.shape, folded.ranges, lse.device)
    first, second = ScratchMemory(cells, lse), ScratchMemory(cells, lse)
    for block, tiles in iterate_tiles(folded.shape, folded.ranges, lse.dtype, lse.device):
        logits = BlockLogits(log_weights, block)
        underflows = may_underflow(block)
        block_columns = columns[block.batch, block.kv_heads].flatten(0, 1).to(lse.dtype)  # [key_heads, kv_len, width]
        block_products = lse.new_zeros((*logits.query.shape[:2], columns.shape[3]))
        row_entropies: list[Tensor] = []
        for tile in tiles:
            shape = logits.tile_shape(tile)
            logs = logits.apply_bias_and_mask_(logits.products(tile, first.take(*shape)), tile)
            weights = exp_(logs, masked=folded.masked(tile), may_underflow=underflows, out=second.take(*shape))
            block_products.baddbmm_(weights, block_columns[:, tile.keys])
            row_entropies.append(logs.mul_(weights).sum(dim=-1))
        products[block] = logits.unflatten_heads(block_products)
        if row_entropies:
            entropies[block] = -logits.unflatten_heads(_sum_parts(row_entropies))
    return entropies.flatten(1, 2), products.flatten(1, 2)


@without_autocast
def compute_statistics(
    folded: FoldedCall, lse: Float[Tensor, "batch heads q_len"], request: StatisticsRequest
) -> AttentionStatistics:
    """Compute every statistic of a request except pooling, in one pass over the tiles."""
    entropy, received, distance, top = request.entropy, request.received, request.distance, request.top
    batch, kv_heads, group, q_len, kv_len = folded.shape
    log_weights = folded.minus_lse(fold_heads(lse, kv_heads))
    may_underflow = folded.underflow_bound()
    heads_shape = (batch, kv_heads, group)

    entropies = lse.new_zeros((*heads_shape, q_len)) if entropy else None
    distances = lse.new_zeros((*heads_shape, q_len)) if distance else None
    members = None if request.spans is None else request.spans.members(batch, kv_len, lse)
    masses = None if members is None else lse.new_zeros((*heads_shape, q_len, members.shape[2]))
    # columns add a sum from every band of rows; in float64 the rounding error does not grow with the bands
    columns = lse.new_zeros((*heads_shape, kv_len), dtype=torch.float64) if received else None
    best = lse.new_full((*heads_shape, q_len, top), -torch.inf)
    best_keys = torch.full_like(best, -1, dtype=torch.long)
    cells = max_tile_cells(folded.shape, folded.ranges, lse.device)
    first, second = ScratchMemory(cells, lse), ScratchMemory(cells, lse)
    distance_to = _Distances(folded) if distance and q_len else None
    for block, tiles in iterate_tiles(folded.shape, folded.ranges, lse.dtype, lse.device):
        logits = BlockLogits(log_weights, block)
        underflows = may_underflow(block)
        heads, rows = logits.shape[:3].numel(), logits.shape[3]
        ones = lse.new_ones((heads, 1, rows))
        row_entropies: list[Tensor] = []
        row_distances = None if distance_to is None else _RowDistances(distance_to, logits)
        column_sums: list[tuple[slice, Tensor]] = []
        block_top = _Largest(top) if top else None
        for tile in tiles:
            shape = logits.tile_shape(tile)
            logs = logits.apply_bias_and_mask_(logits.products(tile, first.take(*shape)), tile)
            if block_top is not None:
                block_top.add(logits.unflatten_heads(logs), tile.keys)
            if not (entropy or received or distance or request.spans):
                continue
            weights = exp_(logs, masked=folded.masked(tile), may_underflow=underflows, out=second.take(*shape))
            if received:
                column_sums.append((tile.keys, torch.bmm(ones, second.take(heads, rows, shape[2]))))
            if masses is not None and members is not None:
                tile_members = members if members.shape[0] == 1 else members[block.batch]
                masses[block] += logits.unflatten_heads(weights) @ tile_members[:, None, None, tile.keys]
            if entropy:
                row_entropies.append(logs.mul_(weights).sum(dim=-1))
            if row_distances is not None:
                row_distances.add(second.take(heads, rows, shape[2]), tile.keys, spare=first)
        if block_top is not None and block_top.parts:
            values, keys = block_top.merged()
            best[block][..., : values.shape[-1]], best_keys[block][..., : keys.shape[-1]] = values, keys
        if entropies is not None and row_entropies:
            entropies[block] = -logits.unflatten_heads(_sum_parts(row_entropies))
        if distances is not None and row_distances is not None:
            distances[block] = row_distances.total()
        if columns is not None:
            _add_columns(columns[block[:3]].flatten(0, 2).unsqueeze(1), column_sums)  # a view, added to in place

    def unfold(statistic: Tensor | None) -> Tensor | None:
        return None if statistic is None else statistic.flatten(1, 2).to(lse.dtype)

    largest = TopK(best.exp().flatten(1, 2), best_keys.flatten(1, 2)) if top else None
    return AttentionStatistics(
        entropy=unfold(entropies),
        received=unfold(columns),
        distance=unfold(distances),
        mass=unfold(masses),
        top=largest,
    )


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
        self.up, self.down = (torch.stack([torch.ones_like(up), terms]) for terms in (up, up.flip(0)))
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
        self.on_left.append(_products(weights, self.shared.down[:, skipped + keys.start : skipped + keys.stop]))

    def _add_right(self, weights: Float[Tensor, "heads rows keys"], keys: slice) -> None:
        skipped = 1 - self.right
        self.on_right.append(_products(weights, self.shared.up[:, skipped + keys.start : skipped + keys.stop]))

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


def _products(
    weights: Float[Tensor, "heads rows keys"], columns: Float[Tensor, "columns keys"]
) -> Float[Tensor, "heads columns rows"]:
    """Return the products of weights and a few columns. MKL multiplies a matrix by one vector in a single thread."""
    return torch.bmm(columns.expand(weights.shape[0], -1, -1), weights.mT)
