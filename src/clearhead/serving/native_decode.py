"""`NativeDecode`: decoding rows of a batch of requests on a CPU, in one call per layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.serving.layers import ServedLayer
from clearhead.serving.native import NativeKernel, Tile, span_tensor, tile_tensor
from clearhead.serving.paged import PagedCache
from clearhead.serving.statistics import StatisticsWanted


class DecodeStatistics(NamedTuple):
    """Statistics of one layer in float32, one row per request.

    Attributes:
        lse: log-sum-exp of each row.
        rows: `entropy`, `distance`, `peak` and `sink`, if wanted.
        mass: weight of each row on the spans of its request; None without spans. Missing spans have the weight 0.
        weights: weights of all keys, 0 for those that the query may not attend to; None unless `top` is wanted.
    """

    lse: Float[Tensor, "rows heads"]
    rows: dict[str, Float[Tensor, "rows heads"]]
    mass: Float[Tensor, "spans rows heads"] | None
    weights: Float[Tensor, "rows heads keys"] | None


class NativeDecode:
    """Requests with one query each, the last of their tokens, in the order of the queries and of the block table.

    Args:
        kernel: compiled functions.
        kv_lens: number of keys of each request.
        spans: spans of each request by name.
        wanted: statistics to compute.
    """

    def __init__(
        self,
        kernel: NativeKernel,
        kv_lens: Sequence[int],
        spans: Sequence[Mapping[str, tuple[int, int]]],
        wanted: StatisticsWanted,
    ) -> None:
        self._kernel, self._kv_lens, self._wanted = kernel, kv_lens, wanted
        self._spans = span_tensor([each.values() for each in spans], wanted)
        self._names = [name for name in ("entropy", "distance", "peak") if getattr(wanted, name)]
        self._tiles: dict[int, Tensor] = {}  # by the number of sums of one request

    def run(
        self,
        layer: ServedLayer,
        query: Float[Tensor, "rows heads key_dim"],
        cache: PagedCache,
        block_table: Int[Tensor, "rows blocks"],
        received: Float[Tensor, "rows kv_heads group blocks block"] | None,
    ) -> DecodeStatistics:
        """Compute the statistics of one layer.

        Args:
            layer: options of the layer.
            query: query of each request.
            cache: cache that contains the keys, that of the query included.
            block_table: blocks of each request, contiguous integers of 64 bits.
            received: column sums, contiguous, to which the weights are added; None if they are not wanted.
        """
        shape, keys = (len(query), layer.heads), block_table.shape[1] * cache.block_size
        lse, *rows = torch.empty(1 + len(self._names), *shape)
        statistics = dict(zip(self._names, rows, strict=True))
        outputs = {"lse": lse, **statistics}
        if received is not None:
            outputs["received"] = received
        mass = weights = None
        if self._spans is not None:
            outputs["mass"] = mass = torch.empty(self._spans.shape[1], *shape)
        if self._wanted.top:
            outputs["weights"] = weights = torch.empty(*shape, keys)
        self._kernel.run(layer, query, cache, block_table, self._tiles_of(layer.heads, keys), outputs, self._spans)
        if mass is not None and self._wanted.sink:
            statistics["sink"], mass = mass[0], mass[1:]
        return DecodeStatistics(lse, statistics, mass, weights)

    def _tiles_of(self, heads: int, keys: int) -> Int[Tensor, "rows fields"]:
        size = heads * keys
        if size not in self._tiles:
            self._tiles[size] = tile_tensor(
                [
                    Tile(row, 1, kv_len, row, row, received=row * size, keys=keys, spans=row)
                    for row, kv_len in enumerate(self._kv_lens)
                ]
            )
        return self._tiles[size]
