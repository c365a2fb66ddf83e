"""Paged caches filled with the keys and values of a batch of requests. All other slots are NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.ops.alibi import ALiBi
from clearhead.serving.layers import ServedLayer
from clearhead.serving.paged import PagedCache
from support.numerics import Case

LAYOUTS = ("hnd", "nhd", "token-major", "transposed", "packed")  # the first two of GPUs, the others of CPUs
FREED_BLOCK = 0


@dataclass
class Batch:
    """Requests with their keys in a paged cache."""

    layer: ServedLayer
    cache: PagedCache
    query: Tensor  # [tokens, heads, key_dim]
    block_table: Tensor  # [requests, blocks]
    kv_lens: Tensor
    starts: list[int]  # first row of each request in `query`
    cases: list[Case]  # expected results of each request


def served_layer(heads: int = 6, kv_heads: int = 2, **options) -> ServedLayer:
    return ServedLayer(0, "layers.0", heads, kv_heads, scale=0.37, **options)


def fill(
    layer: ServedLayer,
    lengths: Sequence[tuple[int, int]],
    *,
    layout: str = "hnd",
    dtype: torch.dtype = torch.float32,
    block: int = 4,
    key_dim: int = 6,
    spare: int = 2,
    seed: int = 0,
) -> Batch:
    """Return a batch of requests with (q_len, kv_len) `lengths`, whose blocks are in random order.

    Blocks before the window of a request are freed. The table has `spare` columns that no request uses.
    """
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    counts = [-(-kv_len // block) for _, kv_len in lengths]
    width = max(counts) + spare
    table = torch.full((len(lengths), width), FREED_BLOCK, dtype=torch.int32)
    total = sum(counts) + 3
    free = (torch.randperm(total - 1, generator=generator) + 1).tolist()
    keys, values = (torch.full((total, layer.kv_heads, block, key_dim), torch.nan, dtype=dtype) for _ in range(2))
    cases, queries = [], []
    for request, (q_len, kv_len) in enumerate(lengths):
        query = random(1, layer.heads, q_len, key_dim)
        key, value = random(1, layer.kv_heads, kv_len, key_dim), random(1, layer.kv_heads, kv_len, key_dim)
        first = 0 if layer.window is None else max(0, kv_len - q_len + 1 - layer.window)
        for index in range(first // block, counts[request]):
            table[request, index] = identifier = free.pop()
            for target, source in ((keys, key), (values, value)):
                part = source[0, :, index * block : (index + 1) * block]
                target[identifier, :, : part.shape[1]] = part
        bias = None if layer.slopes is None else ALiBi(layer.slopes)
        cases.append(Case(query, key, value, layer.mask, bias, layer.scale, layer.softcap, layer.sinks))
        queries.append(query[0].transpose(0, 1))
    starts = torch.tensor([0, *(q_len for q_len, _ in lengths)]).cumsum(0).tolist()[:-1]
    kv_lens = torch.tensor([kv_len for _, kv_len in lengths])
    cache = _in_layout(layout, keys, values, generator)
    return Batch(layer, cache, torch.cat(queries), table, kv_lens, starts, cases)


def _in_layout(layout: str, keys: Tensor, values: Tensor, generator: torch.Generator) -> PagedCache:
    blocks, kv_heads, block, key_dim = keys.shape
    if layout in ("hnd", "nhd"):
        cache = torch.cat([keys, values], dim=3)
        if layout == "nhd":
            cache = cache.transpose(1, 2).contiguous().transpose(1, 2)
        return PagedCache.interleaved(cache)
    order = torch.arange(block * key_dim)
    if layout == "transposed":
        order = order.view(key_dim, block).mT.flatten()
    elif layout == "packed":
        order = torch.randperm(block * key_dim, generator=generator)
    packed = torch.full_like(keys.flatten(2), torch.nan)
    packed[..., order] = keys.flatten(2)
    cache = torch.stack([packed, values.flatten(2)], dim=2).view(blocks, kv_heads, block, 2 * key_dim)
    return PagedCache.halves(cache, order)
