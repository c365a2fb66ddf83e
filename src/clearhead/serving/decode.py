"""Attention rows of requests with one query each, as in decoding: weights, log-sum-exp, entropy and peak.

The scores are computed in float32 directly from the blocks of a paged cache, for all requests of a batch at once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.serving.layers import ServedLayer
from clearhead.serving.paged import PagedCache

_NO_WINDOW = 2**40  # larger than any position


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
    if query.is_cuda:
        return _rows_by_triton(layer, query, cache, block_table, kv_lens)
    window = torch.tensor(_NO_WINDOW if layer.window is None else layer.window)
    allowed = _allowed(block_table.shape[1], cache.block_size, kv_lens, window)
    keys = cache.keys_of(torch.where(allowed.any(dim=-1)[..., 0, 0], block_table, 0)).float()
    scores = (query.float() * layer.scale).unflatten(1, (1, layer.kv_heads, layer.group)) @ keys.mT
    slopes = None if layer.slopes is None else layer.slopes.float().view(layer.kv_heads, layer.group, 1)
    return _rows_of(_finish(scores, allowed, kv_lens, layer.softcap, slopes), layer.sinks)


def _allowed(
    blocks: int, block_size: int, kv_lens: Int[Tensor, " rows"], window: Int[Tensor, ""]
) -> Bool[Tensor, "rows blocks 1 1 block"]:
    """Return the slots that each query may attend to."""
    keys, ends = _positions(blocks, block_size, kv_lens), kv_lens.view(-1, 1, 1, 1, 1)
    return (keys >= ends - window) & (keys < ends)


def _positions(blocks: int, block_size: int, like: Tensor) -> Int[Tensor, "blocks 1 1 block"]:
    starts = torch.arange(blocks, device=like.device) * block_size
    return starts.view(-1, 1, 1, 1) + torch.arange(block_size, device=like.device)


def _finish(
    scores: Float[Tensor, "rows blocks kv_heads group block"],
    allowed: Bool[Tensor, "rows blocks 1 1 block"],
    kv_lens: Int[Tensor, " rows"],
    softcap: float | None,
    slopes: Float[Tensor, "kv_heads group 1"] | None,
) -> Float[Tensor, "rows blocks kv_heads group block"]:
    """Apply soft cap, ALiBi and mask to scaled scores. Unused slots may contain NaN."""
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if slopes is not None:
        keys = _positions(scores.shape[1], scores.shape[4], kv_lens)
        scores = scores - slopes * (kv_lens.view(-1, 1, 1, 1, 1) - 1 - keys)
    return torch.where(allowed, scores, -torch.inf)


def _rows_of(
    scores: Float[Tensor, "rows blocks kv_heads group block"], sinks: Float[Tensor, "*heads"] | None
) -> DecodeRows:
    """Return the softmax over blocks and slots, and its statistics, from one exponential per score."""
    axes = (1, 4)
    peak = scores.amax(axes, keepdim=True)
    # a row without a key has the maximum −inf; subtracting it would give NaN
    pivot = torch.where(peak == -torch.inf, 0.0, peak)
    logs = scores - pivot
    exponentials = logs.exp()
    total = exponentials.sum(axes, keepdim=True)
    lse = pivot + total.log()
    denominator = total  # exp(pivot − lse) would add the rounding error of the log-sum-exp to all weights
    if sinks is not None:
        sinks = sinks.float().view(*scores.shape[2:4], 1)
        lse, denominator = torch.logaddexp(lse, sinks), total + (sinks - pivot).exp()
    share = torch.where(denominator == 0, 0.0, denominator.reciprocal())
    # Σ A · (lse − score), as a sum of terms that are not negative
    spread = -torch.where(scores == -torch.inf, 0.0, exponentials * logs).sum(axes, keepdim=True)
    entropy = share * (spread + total * torch.where(lse == -torch.inf, 0.0, lse - pivot))
    weights = (exponentials * share).permute(0, 2, 3, 1, 4)
    return DecodeRows(lse.flatten(1), entropy.flatten(1), peak.flatten(1), weights)


def _rows_by_triton(
    layer: ServedLayer,
    query: Float[Tensor, "rows heads key_dim"],
    cache: PagedCache,
    block_table: Int[Tensor, "rows blocks"],
    kv_lens: Int[Tensor, " rows"],
) -> DecodeRows:
    from clearhead.ops.triton.paged_scores import paged_scores  # imports Triton
    from clearhead.ops.triton.score_rows import softmax_in_place

    first = None if layer.window is None else layer.first_keys(kv_lens - 1)
    scores = paged_scores(
        query, cache.key_blocks, block_table, kv_lens, first, layer.scale, layer.softcap, layer.slopes
    )
    lse, entropy, peak = softmax_in_place(scores, kv_lens, layer.sinks)
    shape = (len(query), layer.kv_heads, layer.group, block_table.shape[1], cache.block_size)
    return DecodeRows(lse, entropy, peak, scores.view(shape))
