"""Paged caches in the layouts of vLLM, filled by the tests, and the scores of decoding steps in any precision."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.ops.triton.paged_scores import paged_scores
from support.numerics import assert_matches, poisoned

# order in memory of the logical axes layers, blocks, kv_heads, slots of a block, content: vLLM's `KVCacheLayout`
LAYOUTS = {
    "LBHNC": (0, 1, 2, 3, 4),
    "LBNHC": (0, 1, 3, 2, 4),
    "LHBNC": (0, 2, 1, 3, 4),
    "BLHNC": (1, 0, 2, 3, 4),
    "BLNHC": (1, 0, 3, 2, 4),
    "BHLNC": (1, 2, 0, 3, 4),
}
LAYERS = 2
SPARE_BLOCKS = 3  # of other requests


def empty_cache(blocks: int, kv_heads: int, block: int, width: int, layout: str, **options: object) -> Tensor:
    """Return the last layer of a cache of NaN, `[blocks, kv_heads, block, width]`, with the strides of a layout."""
    shape, order = (LAYERS, blocks, kv_heads, block, width), LAYOUTS[layout]
    memory = torch.full([shape[axis] for axis in order], torch.nan, **options)  # pyright: ignore
    return memory.permute([order.index(axis) for axis in range(5)])[-1]


@dataclass
class Requests:
    """Keys and values of requests, contiguous and in a paged cache whose other slots, and whole block 0, are NaN."""

    keys: list[Tensor]  # [kv_heads, kv_len, key_dim] each
    values: list[Tensor]
    cache: Tensor  # [blocks, kv_heads, block, 2 · key_dim]: keys, then values
    block_table: Tensor
    kv_lens: Tensor

    @classmethod
    def random(
        cls,
        kv_lens: list[int],
        kv_heads: int,
        dim: int,
        block: int,
        *,
        layout: str = "LBHNC",
        dtype: torch.dtype = torch.bfloat16,
        device: str = "cpu",
        window: int | None = None,
        q_lens: list[int] | None = None,
        spare_columns: int = 1,
    ) -> Requests:
        """Fill a cache. Blocks of a request are in random order; those before its window are freed: id 0, as in vLLM.

        Args:
            kv_lens: number of keys of each request.
            kv_heads: number of key heads.
            dim: width of keys and values.
            block: slots of a block.
            layout: name of a layout of vLLM.
            dtype: dtype of the cache.
            device: device of all tensors.
            window: number of keys that a query may attend to.
            q_lens: number of queries of each request, its last tokens; default: 1.
            spare_columns: columns of the block table beyond the longest request.
        """
        generator = torch.Generator().manual_seed(sum(kv_lens) + dim)
        columns = [-(-kv_len // block) for kv_len in kv_lens]
        blocks = sum(columns) + SPARE_BLOCKS
        cache = empty_cache(blocks, kv_heads, block, 2 * dim, layout, dtype=dtype, device=device)
        ids = (1 + torch.randperm(blocks - 1, generator=generator)).tolist()
        table = torch.zeros(len(kv_lens), max(columns, default=0) + spare_columns, dtype=torch.int32)
        keys, values = [], []
        for row, kv_len in enumerate(kv_lens):
            contents = torch.randn(kv_heads, kv_len, 2 * dim, generator=generator).to(device, dtype)
            queries = 1 if q_lens is None else q_lens[row]
            first = 0 if window is None else max(0, kv_len - queries + 1 - window)
            for column in range(first // block, columns[row]):
                index = ids.pop()
                table[row, column] = index
                slots = contents[:, column * block : (column + 1) * block]
                cache[index, :, : slots.shape[1]] = slots
            keys.append(contents[..., :dim])
            values.append(contents[..., dim:])
        return cls(keys, values, cache, table.to(device), torch.tensor(kv_lens, device=device))

    @property
    def key_blocks(self) -> Tensor:
        return self.cache[..., : self.cache.shape[-1] // 2]

    def first_keys(self, window: int | None) -> Tensor | None:
        return None if window is None else (self.kv_lens - window).clamp(min=0)

    def scores(
        self,
        query: Tensor,
        dtype: torch.dtype,
        *,
        scale: float = 1.0,
        softcap: float | None = None,
        slopes: Tensor | None = None,
        window: int | None = None,
    ) -> Tensor:
        """Return the scores of one query per request by the plain formula, −inf beyond the keys of each."""
        slots = self.block_table.shape[1] * self.cache.shape[2]
        result = query.new_full((*query.shape[:2], slots), -torch.inf, dtype=dtype)
        for row, key in enumerate(self.keys):
            kv_len, group = key.shape[1], query.shape[1] // key.shape[0]
            scores = scale * (key.to(dtype).repeat_interleave(group, dim=0) @ query[row].to(dtype)[..., None])[..., 0]
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            if slopes is not None:
                distances = kv_len - 1 - torch.arange(kv_len, device=query.device)
                scores = scores - slopes.to(dtype)[:, None] * distances
            first = 0 if window is None else max(0, kv_len - window)
            result[row, :, first:kv_len] = scores[:, first:]
        return result

    def terms(self, query: Tensor) -> float:
        """Return a bound of the sums of absolute values of the terms of Q Kᵀ."""
        longest = max(float(key.double().norm(dim=-1).max()) for key in self.keys if key.shape[1])
        return longest * float(query.double().norm(dim=-1).max())

    def largest_distance(self, slopes: Tensor | None) -> float:
        """Return a bound of slope · distance."""
        return 0.0 if slopes is None else float(slopes.abs().max()) * float(self.kv_lens.max())


def check_scores(
    requests: Requests,
    query: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    slopes: Tensor | None = None,
) -> None:
    """Assert that the kernel gives the scores of the plain formula, and −inf for all other slots."""
    table, first_keys = requests.block_table, requests.first_keys(window)
    with poisoned():
        got = paged_scores(query, requests.key_blocks, table, requests.kv_lens, first_keys, scale, softcap, slopes)
    exact, naive = (
        requests.scores(query, dtype, scale=scale, softcap=softcap, slopes=slopes, window=window)
        for dtype in (torch.float64, torch.float32)
    )
    finite = exact > -torch.inf
    assert torch.equal(got == -torch.inf, ~finite)
    size = requests.terms(query) * abs(scale) + requests.largest_distance(slopes)
    assert_matches(got[finite].cpu(), exact[finite].cpu(), naive[finite].cpu(), scale=size)
