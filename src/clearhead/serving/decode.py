"""Attention rows of requests with one query each, as in decoding: weights, log-sum-exp, entropy and peak.

The scores are computed in float32 directly from the blocks of a paged cache, for all requests of a batch at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.serving.layers import ServedLayer
from clearhead.serving.paged import PagedCache

_log = logging.getLogger(__name__)
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


class DecodeKernel:
    """`decode_rows` of one engine, compiled by torch for the kinds of layers that were warmed up.

    A compiled kernel takes any number of requests and blocks. Nothing is compiled outside of `warm_up`. Calls for
    other layers run uncompiled, and so do all calls if compiling fails.
    """

    def __init__(self) -> None:
        self._kernels: dict[tuple, Callable[..., tuple[Tensor, ...]]] = {}
        self._layers: dict[ServedLayer, _LayerKernel] = {}
        self._failed = False

    def warm_up(self, layer: ServedLayer, cache: PagedCache, dtype: torch.dtype) -> None:
        """Compile for a layer and queries of a dtype, unless a layer of the same kind was compiled."""
        key = cache.key_blocks
        if self._failed or cache.key_order is not None or key.device.type != "cpu":
            return
        options = (layer.heads, layer.scale, layer.softcap, layer.slopes is None)
        kind = (key.shape[1:], key.stride(), key.dtype, key.is_inference(), dtype, *options)
        try:
            if kind not in self._kernels:
                self._kernels[kind] = _compile(layer, cache, dtype)
            self._layers[layer] = _LayerKernel(layer, self._kernels[kind])
        except Exception as error:  # whatever a compiler raises
            self._failed = True
            self._layers.clear()
            reason = str(error).strip().partition("\n")[0]
            _log.warning("torch.compile failed (%s); attention of decoding is computed uncompiled", reason)

    def __call__(
        self,
        layer: ServedLayer,
        query: Float[Tensor, "rows heads key_dim"],
        cache: PagedCache,
        block_table: Int[Tensor, "rows blocks"],
        kv_lens: Int[Tensor, " rows"],
    ) -> DecodeRows:
        """Compute the rows, as `decode_rows`."""
        kernel = self._layers.get(layer)
        if kernel is None or not block_table.numel():
            return decode_rows(layer, query, cache, block_table, kv_lens)
        return kernel(query, cache, block_table, kv_lens)


class _LayerKernel:
    """Compiled kernel with the tensors of one layer."""

    def __init__(self, layer: ServedLayer, kernel: Callable[..., tuple[Tensor, ...]]) -> None:
        self._kernel = kernel
        with torch.inference_mode():
            self._options = _option_tensors(layer)

    @torch.inference_mode()
    def __call__(
        self,
        query: Float[Tensor, "rows heads key_dim"],
        cache: PagedCache,
        block_table: Int[Tensor, "rows blocks"],
        kv_lens: Int[Tensor, " rows"],
    ) -> DecodeRows:
        tensors = (query, block_table.long(), kv_lens.long())
        rows = query.shape[0]
        if rows == 1:  # torch compiles a size of 1 separately
            tensors = tuple(torch.cat([tensor, tensor]) for tensor in tensors)
        # kernels are compiled for contiguous tensors that were created in inference mode
        query, block_table, kv_lens = (
            tensor.contiguous() if tensor.is_inference() else tensor.clone(memory_format=torch.contiguous_format)
            for tensor in tensors
        )
        with torch.compiler.set_stance("eager_on_recompile"):
            results = DecodeRows(*self._kernel(query, cache.key_blocks, block_table, kv_lens, *self._options))
        return results if rows > 1 else DecodeRows(*(result[:1] for result in results))


def _option_tensors(layer: ServedLayer) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return window, sinks and slopes in the form that kernels take."""

    def folded(tensor: Tensor) -> Float[Tensor, "kv_heads group 1"]:
        return tensor.float().view(layer.kv_heads, layer.group, 1).clone()

    window = torch.tensor(_NO_WINDOW if layer.window is None else layer.window)
    sinks = torch.full((layer.heads,), -torch.inf) if layer.sinks is None else layer.sinks
    return window, folded(sinks), None if layer.slopes is None else folded(layer.slopes)


@torch.inference_mode()
def _compile(layer: ServedLayer, cache: PagedCache, dtype: torch.dtype) -> Callable[..., tuple[Tensor, ...]]:
    """Compile the kernel of a kind of layer."""
    keys, block_size, group = cache.key_blocks, cache.block_size, layer.group
    scale, softcap = layer.scale, layer.softcap

    def kernel(
        query: Tensor,
        key_blocks: Tensor,
        block_table: Tensor,
        kv_lens: Tensor,
        window: Tensor,
        sinks: Tensor,
        slopes: Tensor | None,
    ) -> tuple[Tensor, ...]:
        allowed = _allowed(block_table.shape[1], block_size, kv_lens, window)
        starts = torch.arange(block_table.shape[1]) * block_size
        ends = kv_lens[:, None]
        used = (starts < ends) & (starts + block_size > ends - window)
        blocks = key_blocks[torch.where(used, block_table, 0)].float()  # [rows, blocks, kv_heads, block, key_dim]
        folded = (query.float() * scale).unflatten(1, (1, -1, group, 1))
        # sums instead of a matrix product: each key is read once for all heads of its group
        scores = torch.stack([(folded[:, :, :, head] * blocks).sum(dim=-1) for head in range(group)], dim=3)
        return tuple(_rows_of(_finish(scores, allowed, kv_lens, softcap, slopes), sinks))

    compiled = torch.compile(kernel)
    options = _option_tensors(layer)
    # equal sizes would be taken for the same size
    rows, blocks = [size for size in (5, 3, 7) if size != keys.shape[0]][:2]
    for columns in (blocks, 1):
        query = torch.zeros(rows, layer.heads, cache.key_dim, dtype=dtype)
        table, kv_lens = torch.zeros(rows, columns, dtype=torch.long), torch.ones(rows, dtype=torch.long)
        for tensor in (query, table, kv_lens, keys):
            torch._dynamo.mark_dynamic(tensor, 0)
        if columns > 1:
            torch._dynamo.mark_dynamic(table, 1)
        compiled(query, keys, table, kv_lens, *options)
    return compiled
