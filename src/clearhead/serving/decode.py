"""Attention rows of requests with one query each, as in decoding: weights, log-sum-exp, entropy and peak.

The scores are computed in float32 directly from the blocks of a paged cache, for all requests of a batch at once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.serving.layers import ServedLayer
from clearhead.serving.paged import PagedCache


class DecodeRows(NamedTuple):
    """Rows of one layer in float32, one per request.

    Attributes:
        lse: log-sum-exp of each row; −inf without a key.
        entropy: entropy of each row, in nats.
        peak: largest score of each row; −inf without a key.
        weights: weights, a view; 0 for slots that the query may not attend to. Key 0 is slot 0 of block 0.
    """

    lse: Float[Tensor, "rows heads"]
    entropy: Float[Tensor, "rows heads"]
    peak: Float[Tensor, "rows heads"]
    weights: Float[Tensor, "rows kv_heads group blocks block"]


def decode_rows(
    layer: ServedLayer,
    query: Float[Tensor, "rows heads key_dim"],
    cache: PagedCache,
    block_table: Int[Tensor, "rows blocks"],
    kv_lens: Int[Tensor, " rows"],
) -> DecodeRows:
    """Compute the rows of requests with one query each, the last of their tokens.

    Args:
        layer: options of the layer.
        query: query of each request.
        cache: cache that contains the keys, that of the query included.
        block_table: blocks of each request. Columns beyond the last block of every request cost time.
        kv_lens: number of keys of each request; 0 for a row without keys.
    """
    rows, blocks = block_table.shape
    positions = torch.arange(blocks * cache.block_size, device=query.device)
    first_keys = layer.first_keys(kv_lens - 1)
    allowed = (positions >= first_keys[:, None]) & (positions < kv_lens[:, None])  # [rows, keys]
    allowed = allowed.view(rows, blocks, 1, 1, cache.block_size)
    used = allowed.any(dim=-1)[..., 0, 0]
    keys = cache.keys_of(torch.where(used, block_table, 0)).float()  # [rows, blocks, kv_heads, block, key_dim]
    folded = (query.float() * layer.scale).unflatten(1, (1, layer.kv_heads, layer.group))
    scores = folded @ keys.mT  # [rows, blocks, kv_heads, group, block]
    if layer.softcap is not None:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    if layer.slopes is not None:
        distances = (kv_lens[:, None] - 1 - positions).view(rows, blocks, 1, 1, cache.block_size)
        scores = scores - layer.slopes.float().view(layer.kv_heads, layer.group, 1) * distances
    scores = torch.where(allowed, scores, -torch.inf)
    return _softmax(scores, allowed, layer.sinks)


def _softmax(
    scores: Float[Tensor, "rows blocks kv_heads group block"], allowed: Tensor, sinks: Float[Tensor, " heads"] | None
) -> DecodeRows:
    axes = (1, 4)
    peak = scores.amax(axes, keepdim=True)
    # a row without a key has the maximum −inf; subtracting it would give NaN
    pivot = torch.where(peak == -torch.inf, 0.0, peak)
    lse = pivot + torch.exp(scores - pivot).sum(axes, keepdim=True).log()
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks.float().view(*scores.shape[2:4], 1))
    logs = scores - torch.where(lse == -torch.inf, 0.0, lse)
    weights = logs.exp()
    entropy = -torch.where(allowed, weights * logs, 0.0).sum(axes)
    return DecodeRows(lse.flatten(1), entropy.flatten(1), peak.flatten(1), weights.permute(0, 2, 3, 1, 4))


class DecodeKernel:
    """`decode_rows` of one engine. Calls before `warm_up`, or with another kind of layer, run uncompiled."""

    def warm_up(self, layer: ServedLayer, cache: PagedCache, dtype: torch.dtype) -> None:
        """Prepare for layers with the options, cache layout and query dtype of one layer."""

    def __call__(
        self,
        layer: ServedLayer,
        query: Float[Tensor, "rows heads key_dim"],
        cache: PagedCache,
        block_table: Int[Tensor, "rows blocks"],
        kv_lens: Int[Tensor, " rows"],
    ) -> DecodeRows:
        """Compute the rows, as `decode_rows`."""
        return decode_rows(layer, query, cache, block_table, kv_lens)
