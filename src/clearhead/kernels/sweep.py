"""The observing sweep: statistics of every row and column from (query, key, log-sum-exp), in one pass over tiles."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.kernels.scoring import BlockScores, Scoring, exp_, fit, fold_heads
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
    scratch, second = lse.new_empty((2, largest_tile(scores.shape, lse.device)))
    shared: dict[tuple[int, int, int, int], Tensor] = {}
    for block, tiles in walk(scores.shape, scores.ranges, lse.dtype, lse.device):
        here = BlockScores(log_weights, block)
        underflows = bool(may_underflow[block[:3]].any())
        row_entropy = None if entropies is None else entropies[block]
        row_distance = None if distances is None else _RowDistance(here, shared)
        column_sums = None if columns is None else columns[block[:3]]
        for tile in tiles:
            logs = here.finish_(here.products(tile, scratch), tile)
            if top:
                _merge_top(best[block], best_keys[block], logs, tile.keys)
            if row_entropy is None and row_distance is None and column_sums is None:
                continue
            weights = exp_(logs, masked=scores.masked(tile), may_underflow=underflows, out=fit(second, logs.shape))
            if column_sums is not None:
                flat = weights.flatten(0, 2)
                ones = flat.new_ones((flat.shape[0], 1, flat.shape[1]))
                column_sums[..., tile.keys] += torch.bmm(ones, flat).view(*weights.shape[:3], -1)
            if row_entropy is not None:
                row_entropy -= logs.mul_(weights).sum(dim=-1)
            if row_distance is not None:
                row_distance.add(weights, tile.keys, spare=scratch)
        if distances is not None and row_distance is not None:
            distances[block] = row_distance.total()

    def unfold(folded: Tensor | None) -> Tensor | None:
        return None if folded is None else folded.flatten(1, 2).to(lse.dtype)

    largest = TopK(best.exp().flatten(1, 2), best_keys.flatten(1, 2)) if top else None
    return Observation(unfold(entropies), unfold(columns), unfold(distances), largest)


def _merge_top(best: Tensor, best_keys: Tensor, logs: Float[Tensor, "b k g rows keys"], keys: slice) -> None:
    """Take the tile's largest log weights into the running best; forbidden keys stay out with key −1."""
    top = best.shape[-1]
    values, places = logs.topk(min(top, logs.shape[-1]), dim=-1)
    places = torch.where(values > -torch.inf, places + keys.start, -1)
    merged, order = torch.cat([best, values], dim=-1).topk(top, dim=-1)
    best_keys.copy_(torch.cat([best_keys, places], dim=-1).gather(-1, order))
    best.copy_(merged)


class _RowDistance:
    """Σ weight · |position of query − key| of each row of a block.

    Left of all its queries, and right of them, the distance is one number per row plus one per key, neither of them
    negative: sums and a matrix-vector product, and nothing cancels. Only the keys between the first and the last query
    of the block need the distances themselves, which its other heads share.
    """

    def __init__(self, here: BlockScores, shared: dict[tuple[int, int, int, int], Tensor]) -> None:
        self.here, self.shared = here, shared
        self.positions = here.positions()
        self.lowest, self.highest = int(self.positions[:, 0].min()), int(self.positions[:, -1].max())
        self.near, self.left, self.right = here.query.new_zeros((3, *here.shape), dtype=torch.float64)

    def add(self, weights: Float[Tensor, "b k g rows keys"], keys: slice, spare: Float[Tensor, " cells"]) -> None:
        left = min(max(self.lowest, keys.start), keys.stop)
        right = min(max(self.highest + 1, left), keys.stop)
        flat = weights.flatten(0, 3)
        if left > keys.start:
            part = flat[:, : left - keys.start]
            to_key = torch.arange(left - keys.start, 0, -1, device=flat.device, dtype=flat.dtype)
            to_key += self.lowest - left
            self.left += part.sum(dim=-1).view_as(self.left)
            self.near += torch.mv(part, to_key).view_as(self.near)
        if right < keys.stop:
            part = flat[:, right - keys.start :]
            to_key = torch.arange(keys.stop - right, device=flat.device, dtype=flat.dtype)
            to_key += right - self.highest
            self.right += part.sum(dim=-1).view_as(self.right)
            self.near += torch.mv(part, to_key).view_as(self.near)
        if left < right:
            between = weights[..., left - keys.start : right - keys.start]
            products = torch.mul(between, self._distance(slice(left, right)), out=fit(spare, between.shape))
            self.near += products.sum(dim=-1)

    def total(self) -> Float[Tensor, "b k g rows"]:
        positions = self.positions[:, None, None, :]
        return self.near + self.left * (positions - self.lowest) + self.right * (self.highest - positions)

    def _distance(self, keys: slice) -> Tensor:
        block = self.here.block
        place = (block.batch.start, block.rows.start, keys.start, keys.stop)
        if place not in self.shared:
            if self.shared and next(iter(self.shared))[:2] != place[:2]:
                self.shared.clear()  # of rows that are done with
            self.shared[place] = self.here.distance(keys)
        return self.shared[place]
