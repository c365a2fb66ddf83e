"""Statistics of attention rows from whole bands of rows, whose scores fit into the cache of a CPU.

Prompts on a server are short. Their time depends on the number of operations, so the scores of a band are computed
once, and all statistics follow from one exponential per score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from clearhead.ops.statistics import AttentionStatistics, TopK
from clearhead.serving.layers import ServedLayer
from clearhead.serving.statistics import StatisticsWanted

BAND_CELLS = 2**17  # of all heads, unless that is less than `MIN_BAND_ROWS`
MIN_BAND_ROWS = 64
MAX_BAND_CELLS = 2**24
# added to the scores of masked keys; its product with a weight of 0 is 0, unlike that of −inf
MASKED = -1e30
LOG2_E = 1 / math.log(2)


def fits(layer: ServedLayer, kv_len: int) -> bool:
    """Return whether the memory of a band is small."""
    return MIN_BAND_ROWS * layer.heads * kv_len <= MAX_BAND_CELLS


def band_statistics(
    layer: ServedLayer,
    query: Float[Tensor, "heads q_len key_dim"],
    key: Float[Tensor, "kv_heads kv_len key_dim"],
    wanted: StatisticsWanted,
    spans: Sequence[tuple[int, int]],
) -> tuple[Float[Tensor, "heads q_len"], AttentionStatistics]:
    """Return log-sum-exp and statistics of queries that are the last tokens of the keys.

    Args:
        layer: options of the layer.
        query: queries.
        key: keys.
        wanted: statistics to compute.
        spans: spans of keys for `mass`; none of them is empty.
    """
    q_len, kv_len = query.shape[1], key.shape[1]
    # columns add a sum from every band; in float64 the rounding error does not grow with the bands
    received = query.new_zeros((layer.heads, kv_len), dtype=torch.float64) if wanted.received else None
    query, key = query.float() * layer.scale, key.float().mT
    step = max(MIN_BAND_ROWS, min(q_len, BAND_CELLS // (layer.heads * kv_len)))
    bands = [
        _Band(layer, query, key, slice(start, min(start + step, q_len))).statistics(wanted, spans, received)
        for start in range(0, q_len, step)
    ]
    joined = {name: torch.cat([band[name] for band in bands], dim=1) for name in bands[0]}
    top = TopK(joined.pop("top_weights")[None], joined.pop("top_keys")[None]) if wanted.top else None
    lse = joined.pop("lse")
    results = {name: statistic[None] for name, statistic in joined.items()}
    return lse, AttentionStatistics(**results, received=None if received is None else received[None].float(), top=top)


class _Band:
    """Some rows of a request, and the keys that any of them may attend to."""

    def __init__(self, layer: ServedLayer, query: Tensor, key: Tensor, rows: slice) -> None:
        offset = key.shape[2] - query.shape[1]
        self.layer = layer
        self.end = offset + rows.stop
        self.start = 0 if layer.window is None else max(0, offset + rows.start + 1 - layer.window)
        folded = query[:, rows].reshape(layer.kv_heads, -1, query.shape[2])
        shape = (layer.heads, rows.stop - rows.start, self.end - self.start)
        scores = torch.bmm(folded, key[..., self.start : self.end]).view(shape)
        if layer.softcap is not None:
            scores = scores.div_(layer.softcap).tanh_().mul_(layer.softcap)
        if layer.slopes is not None:
            scores -= layer.slopes.float()[:, None, None] * _distances(*shape[1:])
        if layer.window is None:  # all rows may attend to the keys before the first of them
            scores[..., -shape[1] :] += _mask(shape[1], shape[1], None)
        else:
            scores += _mask(*shape[1:], layer.window)
        self.scores = scores

    def statistics(
        self, wanted: StatisticsWanted, spans: Sequence[tuple[int, int]], received: Tensor | None
    ) -> dict[str, Tensor]:
        """Return the statistics of the rows, [heads, rows, …], and add their weights to `received`."""
        peak = self.scores.amax(dim=-1, keepdim=True)
        logs = self.scores.sub_(peak)
        # MKL's exp takes 20 times longer where the result underflows, as for masked keys; exp2 does not
        exponentials = torch.mul(logs, LOG2_E).exp2_()
        total = exponentials.sum(dim=-1, keepdim=True)
        lse = peak + total.log()
        denominator = total  # exp(peak − lse) would add the rounding error of the log-sum-exp to all weights
        if self.layer.sinks is not None:
            sinks = self.layer.sinks.float()[:, None, None]
            lse, denominator = torch.logaddexp(lse, sinks), total + (sinks - peak).exp()
        share = denominator.reciprocal()
        results = {"lse": lse[..., 0]}
        if wanted.peak:
            results["peak"] = peak[..., 0]
        if wanted.distance:
            distances = _distances(*exponentials.shape[1:])
            results["distance"] = ((exponentials * distances).sum(dim=-1, keepdim=True) * share)[..., 0]
        if wanted.top:
            results |= self._top(wanted.top, logs, share)
        if spans:
            sums = [exponentials[..., max(a - self.start, 0) : max(b - self.start, 0)].sum(dim=-1) for a, b in spans]
            results["mass"] = torch.stack(sums, dim=-1) * share
        if received is not None:
            received[:, self.start : self.end] += torch.bmm(share.mT, exponentials)[:, 0]
        if wanted.entropy:
            # Σ A · (lse − score), as a sum of terms that are not negative
            spread = logs.mul_(exponentials).sum(dim=-1, keepdim=True)
            results["entropy"] = (share * (total * (lse - peak) - spread))[..., 0]
        return results

    def _top(self, top: int, logs: Tensor, share: Tensor) -> dict[str, Tensor]:
        values, keys = logs.topk(min(top, logs.shape[2]), dim=-1)
        missing = (0, top - keys.shape[2])
        keys = torch.where(values > MASKED / 2, keys + self.start, -1)
        weights = pad(values.exp() * share, missing)
        return {"top_weights": weights, "top_keys": pad(keys, missing, value=-1)}


def _distances(rows: int, keys: int) -> Float[Tensor, "rows keys"]:
    """Return the distance between query and key of each cell, if the rows are the last of the keys."""
    return (torch.arange(keys - rows, keys)[:, None] - torch.arange(keys)).abs().float()


@lru_cache(maxsize=16)  # all layers and heads of a step use the same
def _mask(rows: int, keys: int, window: int | None) -> Float[Tensor, "rows keys"]:
    """Return what is added to the scores of the last rows of some keys."""
    offsets = torch.arange(keys - rows, keys)[:, None] - torch.arange(keys)
    hidden = (offsets < 0) if window is None else (offsets < 0) | (offsets >= window)
    return torch.where(hidden, MASKED, 0.0)
