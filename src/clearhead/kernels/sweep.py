"""The observing sweep: statistics of every row and column from (query, key, log-sum-exp), in one pass over tiles."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.kernels.scoring import BlockScores, Scoring, Scratch, exp_, fold_heads
from clearhead.kernels.walk import largest_tile, walk


class TopK(NamedTuple):
    """The largest weights of each query and the keys they stand on; key −1 and weight 0 where a row has fewer."""

    weights: Float[Tensor, "batch heads q_len top"]
    keys: Int[Tensor, "batch heads q_len top"]


@dataclass(frozen=True, eq=False)
class Observation:
    """What a sweep was asked for; None where it was not."""

    entropy: Float[Tensor, "batch heads q_len"] | None = None
    received: Float[Tensor, "batch heads kv_len"] | None = None
    distance: Float[Tensor, "batch heads q_len"] | None = None
    top: TopK | None = None


def sweep(
    scores: Scoring,
    lse: Float[Tensor, "batch heads q_len"],
    *,
    entropy: bool = False,
    received: bool = False,
    distance: bool = False,
    top: int = 0,
) -> Observation:
    """Entropy, column sums, mean distance and the `top` largest weights of each row, whichever are asked for."""
    batch, kv_heads, group, q_len, kv_len = scores.shape
    log_weights = scores.shifted(fold_heads(lse, kv_heads))
    may_underflow = scores.may_underflow()
    heads_shape = (batch, kv_heads, group)

    # tiles add up in float64, so that their number does not show in the last digits
    def sums(wanted: bool, length: int) -> Tensor | None:
        return lse.new_zeros((*heads_shape, length), dtype=torch.float64) if wanted else None

    entropies, columns, distances = sums(entropy, q_len), sums(received, kv_len), sums(distance, q_len)
    best = lse.new_full((*heads_shape, q_len, top), -torch.inf)
    best_keys = torch.full_like(best, -1, dtype=torch.long)
    cells = largest_tile(scores.shape, lse.device)
    first, second = Scratch(cells, lse), Scratch(cells, lse)
    distance_to = _Distances(scores) if distance else None
    for block, tiles in walk(scores.shape, scores.ranges, lse.dtype, lse.device):
        here = BlockScores(log_weights, block)
        underflows = bool(may_underflow[block[:3]].any())
        column_sums = None if columns is None else columns[block[:3]].flatten(0, 2).unsqueeze(1)  # a view
        heads, rows = here.shape[:3].numel(), here.shape[3]
        ones = lse.new_ones((heads, 1, rows))
        row_entropies: list[Tensor] = []
        row_distances = None if distance_to is None else distance_to.rows(here)
        for tile in tiles:
            logs = here.finish_(here.products(tile, first), tile)
            if top:
                _merge_top(best[block], best_keys[block], here.unflat(logs), tile.keys)
            if not (entropy or received or distance):
                continue
            weights = exp_(logs, masked=scores.masked(tile), may_underflow=underflows, out=second.fit(*logs.shape))
            keys = weights.shape[2]
            if column_sums is not None:
                column_sums[..., tile.keys].add_(torch.bmm(ones, second.fit(heads, rows, keys)))
            if entropies is not None:
                row_entropies.append(logs.mul_(weights).sum(dim=-1))
            if row_distances is not None:
                row_distances.add(second.fit(heads * rows, keys), tile.keys, spare=first)
        if entropies is not None and row_entropies:
            entropies[block] = -here.unflat(_added_up(row_entropies))
        if distances is not None and row_distances is not None:
            distances[block] = row_distances.total()

    def unfold(folded: Tensor | None) -> Tensor | None:
        return None if folded is None else folded.flatten(1, 2).to(lse.dtype)

    largest = TopK(best.exp().flatten(1, 2), best_keys.flatten(1, 2)) if top else None
    return Observation(unfold(entropies), unfold(columns), unfold(distances), largest)


def _added_up(parts: list[Tensor]) -> Tensor:
    """Sums of tiles, in float64, so that the number of tiles does not show in the last digits."""
    return torch.stack(parts).sum(dim=0, dtype=torch.float64)


def _merge_top(best: Tensor, best_keys: Tensor, logs: Float[Tensor, "b k g rows keys"], keys: slice) -> None:
    """Take the tile's largest log weights into the running best; forbidden keys stay out with key −1."""
    top = best.shape[-1]
    values, places = logs.topk(min(top, logs.shape[-1]), dim=-1)
    places = torch.where(values > -torch.inf, places + keys.start, -1)
    merged, order = torch.cat([best, values], dim=-1).topk(top, dim=-1)
    best_keys.copy_(torch.cat([best_keys, places], dim=-1).gather(-1, order))
    best.copy_(merged)


class _Distances:
    """Σ weight · |position of query − key|, block by block.

    Left of all queries of a block, and right of them, the distance is one number per row plus one per key, neither of
    them negative: sums and a matrix-vector product, and nothing cancels. Only the keys between the block's first and
    last query need the distances themselves, which all its heads share.
    """

    def __init__(self, scores: Scoring) -> None:
        kv_len, key = scores.shape[4], scores.key
        self.kv_len = kv_len
        self.up = torch.arange(kv_len + 1, device=key.device, dtype=key.dtype)
        self.down = self.up.flip(0)
        self.between: dict[tuple[int, ...], Tensor] = {}  # of the rows at hand

    def rows(self, here: BlockScores) -> "_RowDistances":
        return _RowDistances(self, here)


class _RowDistances:
    def __init__(self, shared: _Distances, here: BlockScores) -> None:
        self.shared, self.here = shared, here
        self.positions = here.positions()
        lowest, highest = int(self.positions[:, 0].min()), int(self.positions[:, -1].max())
        # keys before `left` lie left of every query, keys from `right` on lie right of them
        self.left, self.right = min(max(lowest, 0), shared.kv_len), min(max(highest + 1, 0), shared.kv_len)
        nothing = here.query.new_zeros(here.shape.numel())
        self.near, self.on_left, self.on_right = [nothing], [nothing], [nothing]

    def add(self, weights: Float[Tensor, "rows keys"], keys: slice, spare: Scratch) -> None:
        left = min(max(self.left, keys.start), keys.stop)
        right = min(max(self.right, left), keys.stop)
        if left > keys.start:
            part = weights if left == keys.stop else weights[:, : left - keys.start]
            skipped = self.shared.kv_len - self.left
            self.on_left.append(part.sum(dim=-1))
            self.near.append(torch.mv(part, self.shared.down[skipped + keys.start : skipped + left]))
        if right < keys.stop:
            part = weights if right == keys.start else weights[:, right - keys.start :]
            self.on_right.append(part.sum(dim=-1))
            self.near.append(torch.mv(part, self.shared.up[right - self.right : keys.stop - self.right]))
        if left < right:
            between = weights[:, left - keys.start : right - keys.start].view(*self.here.shape, -1)
            products = torch.mul(between, self._distance(slice(left, right)), out=spare.fit(*between.shape))
            self.near.append(products.sum(dim=-1).view(-1))

    def total(self) -> Float[Tensor, "b k g rows"]:
        near, on_left, on_right = (
            _added_up(parts).view(self.here.shape) for parts in (self.near, self.on_left, self.on_right)
        )
        positions = self.positions[:, None, None, :]
        return near + on_left * (positions - self.left) + on_right * (self.right - positions)

    def _distance(self, keys: slice) -> Tensor:
        block, between = self.here.block, self.shared.between
        place = (block.batch.start, block.rows.start, keys.start, keys.stop)
        if place not in between:
            if between and next(iter(between))[:2] != place[:2]:
                between.clear()
            between[place] = self.here.distance(keys)
        return between[place]
