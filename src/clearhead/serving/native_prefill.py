"""`NativePrefill`: prefill rows of all requests of a step on a CPU, in one call per layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.serving.layers import ServedLayer
from clearhead.serving.native import NativeKernel, Tile, span_tensor, tile_tensor
from clearhead.serving.paged import PagedCache
from clearhead.serving.prefill import PrefillRows, Rows
from clearhead.serving.statistics import StatisticsWanted

TILE_ROWS = 64  # their column sums are added in float32, and those of several tiles in float64
MAX_COLUMN_SUMS = 2**24  # floats; a step with more is computed by other functions


class NativePrefill:
    """Tiles and spans of one step, which all layers share.

    Args:
        kernel: compiled functions.
        rows: queries of each request.
        wanted: statistics to compute, without `top`.
        heads: number of heads.
    """

    def __init__(self, kernel: NativeKernel, rows: Sequence[Rows], wanted: StatisticsWanted, heads: int) -> None:
        self._kernel, self._rows, self._wanted, self._heads = kernel, rows, wanted, heads
        self._outputs: list[slice] = []
        self._sums: list[slice] = []
        tiles: list[Tile] = []
        first, sums = 0, 0
        for index, request in enumerate(rows):
            start = request.kv_len - request.q_len
            self._outputs.append(slice(first, first + request.q_len))
            before = sums
            for row in range(0, request.q_len, TILE_ROWS):
                count = min(TILE_ROWS, request.q_len - row)
                end = start + row + 1
                tile = Tile(request.start + row, count, end, request.request, first + row, sums, request.kv_len, index)
                tiles.append(tile)
                sums += heads * request.kv_len
            self._sums.append(slice(before, sums))
            first += request.q_len
        self._count, self._column_sums = first, sums
        self._tiles = tile_tensor(tiles)
        self._spans = span_tensor([request.spans.values() for request in rows], wanted)

    @staticmethod
    def fits(rows: Sequence[Rows], wanted: StatisticsWanted, heads: int) -> bool:
        """Return whether the kernel computes all that is wanted, in little memory."""
        sums = sum(-(-request.q_len // TILE_ROWS) * request.kv_len * heads for request in rows)
        return not wanted.top and (not wanted.received or sums <= MAX_COLUMN_SUMS)

    def run(
        self,
        layer: ServedLayer,
        query: Float[Tensor, "tokens heads key_dim"],
        cache: PagedCache,
        block_table: Int[Tensor, "requests blocks"],
    ) -> list[PrefillRows]:
        """Compute log-sum-exp and statistics of the queries of each request, as `prefill_rows`."""
        wanted, shape = self._wanted, (self._count, self._heads)
        names = ["lse", *(name for name in ("entropy", "distance", "peak") if getattr(wanted, name))]
        outputs = {name: query.new_empty(shape, dtype=torch.float32) for name in names}
        if self._spans is not None:
            outputs["mass"] = query.new_empty((self._spans.shape[1], *shape), dtype=torch.float32)
        if wanted.received:
            outputs["received"] = query.new_zeros(self._column_sums, dtype=torch.float32)
        table = block_table.long().contiguous()
        self._kernel.run(layer, query, cache, table, self._tiles, outputs, self._spans)
        return [self._request(index, names, outputs) for index in range(len(self._rows))]

    def _request(self, index: int, names: Sequence[str], outputs: dict[str, Tensor]) -> PrefillRows:
        """Return the part of one request. Column sums are copied, because requests keep them for different times."""
        rows, request = self._outputs[index], self._rows[index]
        parts = {name: outputs[name][rows].T for name in names}
        lse = parts.pop("lse")
        if "received" in outputs:
            sums = outputs["received"][self._sums[index]].view(-1, self._heads, request.kv_len)
            parts["received"] = sums[0].clone() if len(sums) == 1 else sums.sum(dim=0, dtype=torch.float64).float()
        if "mass" in outputs:
            masses = outputs["mass"][:, rows].transpose(1, 2)  # [spans, heads, rows]
            if self._wanted.sink:
                parts["sink"], masses = masses[0], masses[1:]
            if request.spans:
                parts["mass"] = masses[: len(request.spans)].movedim(0, 2)
        return PrefillRows(lse, parts)
