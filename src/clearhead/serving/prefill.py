"""Attention rows of requests with several queries: prefill, chunked prefill and prefix-cache hits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from clearhead.functional import lazy_weights
from clearhead.ops.statistics import AttentionStatistics
from clearhead.serving import dense_rows
from clearhead.serving.layers import ServedLayer
from clearhead.serving.paged import PagedCache
from clearhead.serving.statistics import StatisticsWanted


class Rows(NamedTuple):
    """Queries of one request in a batch, which are its last tokens.

    Attributes:
        request: row of the block table.
        start: index of the first query in the batch.
        q_len: number of queries.
        kv_len: number of keys, those of the queries included.
        spans: spans of keys by name, which may end after `kv_len`.
    """

    request: int
    start: int
    q_len: int
    kv_len: int
    spans: Mapping[str, tuple[int, int]] = {}


class PrefillRows(NamedTuple):
    """Rows of one request and layer in float32.

    Attributes:
        lse: log-sum-exp of each row.
        statistics: by name. `entropy`, `distance`, `peak` and `sink` [heads, rows], `received` [heads, kv_len],
            `mass` [heads, rows, spans], `top_weights` and `top_keys` [heads, rows, k].
    """

    lse: Float[Tensor, "heads rows"]
    statistics: dict[str, Tensor]


def prefill_rows(
    layer: ServedLayer,
    query: Float[Tensor, "tokens heads key_dim"],
    cache: PagedCache,
    rows: Sequence[Rows],
    block_table: Int[Tensor, "requests blocks"],
    wanted: StatisticsWanted,
) -> list[PrefillRows]:
    """Compute log-sum-exp and statistics of the queries of each request.

    Args:
        layer: options of the layer.
        query: queries of the batch.
        cache: cache that contains the keys, those of the queries included.
        rows: queries of each request to compute.
        block_table: blocks of the requests.
        wanted: statistics to compute. `mass` is computed for requests with spans.
    """
    return [_one_request(layer, query, cache, request, block_table[request.request], wanted) for request in rows]


def _one_request(
    layer: ServedLayer,
    query: Float[Tensor, "tokens heads key_dim"],
    cache: PagedCache,
    rows: Rows,
    block_ids: Int[Tensor, " blocks"],
    wanted: StatisticsWanted,
) -> PrefillRows:
    position = rows.kv_len - rows.q_len
    first = 0 if layer.window is None else max(0, position + 1 - layer.window)
    key = cache.gather(block_ids, first, rows.kv_len, values=False)[0]
    queries = query[rows.start : rows.start + rows.q_len].transpose(0, 1)
    # the weight on the first key is the mass of a span
    pairs = ([(0, 1)] if wanted.sink else []) + list(rows.spans.values())
    pairs = [(max(start, first) - first, min(end, rows.kv_len) - first) for start, end in pairs]
    present = [pair for pair in pairs if pair[0] < pair[1]]
    if query.device.type == "cpu" and dense_rows.fits(layer, key.shape[1]):
        lse, results = dense_rows.band_statistics(layer, queries, key, wanted, present)
    else:
        lse, results = _lazy_statistics(layer, queries, key, wanted, present)
    statistics = {name: getattr(results, name)[0] for name in ("entropy", "distance", "peak") if name in results}
    if wanted.received:
        statistics["received"] = pad(results.received[0], (first, 0))
    if pairs:
        # indices in a list would be copied to the device, which waits for it
        parts, absent = iter(results.mass[0].unbind(dim=-1) if present else ()), torch.zeros_like(lse)
        masses = torch.stack([next(parts) if pair in present else absent for pair in pairs], dim=-1)
        if wanted.sink:
            statistics["sink"], masses = masses[..., 0], masses[..., 1:]
        if rows.spans:
            statistics["mass"] = masses
    if wanted.top:
        keys = results.top.keys[0]
        statistics["top_weights"] = results.top.weights[0]
        statistics["top_keys"] = torch.where(keys < 0, keys, keys + first)
    return PrefillRows(lse, statistics)


def _lazy_statistics(
    layer: ServedLayer,
    query: Float[Tensor, "heads q_len key_dim"],
    key: Float[Tensor, "kv_heads kv_len key_dim"],
    wanted: StatisticsWanted,
    spans: Sequence[tuple[int, int]],
) -> tuple[Float[Tensor, "heads q_len"], AttentionStatistics]:
    weights = lazy_weights(layer.call(query[None], key[None]), check_mutation=False)
    # the mass of a span is a product with all keys; the weight on one key is much less work
    single = [index for index, (start, end) in enumerate(spans) if end == start + 1]
    wider = [span for index, span in enumerate(spans) if index not in single]
    results = weights.observe(
        entropy=wanted.entropy,
        received=wanted.received,
        distance=wanted.distance,
        peak=wanted.peak,
        spans=wider or None,
        top=wanted.top or None,
    )
    if single:
        masses = iter(results.mass[0].unbind(dim=-1) if wider else ())
        parts = [
            _weights_on_key(layer, query, key, start, weights.lse[0]) if index in single else next(masses)
            for index, (start, _) in enumerate(spans)
        ]
        results |= AttentionStatistics(mass=torch.stack(parts, dim=-1)[None])
    return weights.lse[0], results


def _weights_on_key(
    layer: ServedLayer,
    query: Float[Tensor, "heads q_len key_dim"],
    key: Float[Tensor, "kv_heads kv_len key_dim"],
    index: int,
    lse: Float[Tensor, "heads q_len"],
) -> Float[Tensor, "heads q_len"]:
    """Return the weight of each query on one key, without reading values from the device."""
    q_len, kv_len = query.shape[1], key.shape[1]
    # a sum, because a matrix product with one column takes longer on a GPU
    folded = query.unflatten(0, (layer.kv_heads, -1)).float()
    scores = (folded * key[:, None, None, index].float()).sum(dim=-1).flatten(0, 1) * layer.scale
    if layer.softcap is not None:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    distances = torch.arange(kv_len - q_len, kv_len, device=query.device) - index
    if layer.slopes is not None:
        scores = scores - layer.slopes.to(query.device, torch.float32)[:, None] * distances
    allowed = (distances >= 0) & (distances < (layer.window or kv_len))
    return torch.where(allowed, torch.exp(scores - lse), 0.0)
