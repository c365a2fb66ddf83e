"""`PagedCache`: keys and values of one layer in blocks of tokens, in the memory layouts of inference servers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class PagedCache:
    """Keys and values of one layer in blocks of tokens.

    A request's row of the block table lists its blocks. Blocks of a sliding layer before the window may be freed.
    Their contents, and those of unused slots, are undefined, so they are never read into a result.

    Attributes:
        key_blocks: keys, a view with any strides; or packed blocks, whose order `key_order` gives.
        value_blocks: values, a view with any strides.
        key_order: index in a packed block of each (token, dim), token-major. None if `key_blocks` is not packed.
    """

    key_blocks: Float[Tensor, "blocks kv_heads block key_dim"] | Float[Tensor, "blocks kv_heads packed"]
    value_blocks: Float[Tensor, "blocks kv_heads block value_dim"]
    key_order: Int[Tensor, " packed"] | None = None

    @classmethod
    def interleaved(cls, cache: Float[Tensor, "blocks kv_heads block columns"]) -> PagedCache:
        """Return views of a cache whose rows are a key followed by its value, as of vLLM's GPU backends."""
        key, value = cache.chunk(2, dim=3)
        return cls(key, value)

    @classmethod
    def halves(
        cls, cache: Float[Tensor, "blocks kv_heads block columns"], key_order: Int[Tensor, " packed"]
    ) -> PagedCache:
        """Return views of a cache whose blocks are keys, then values, as of vLLM's CPU backend.

        Args:
            cache: cache, contiguous in each block and head.
            key_order: index in the half of the keys of each (token, dim), token-major.
        """
        blocks, kv_heads, block, columns = cache.shape
        key_dim = columns // 2
        packed, values = cache.view(blocks, kv_heads, 2, block * key_dim).unbind(dim=2)
        value = values.unflatten(2, (block, key_dim))
        order = key_order.to(device="cpu", dtype=torch.long)
        token_major = torch.arange(block * key_dim)
        if torch.equal(order, token_major):
            return cls(packed.unflatten(2, (block, key_dim)), value)
        if torch.equal(order, token_major.view(key_dim, block).mT.flatten()):
            return cls(packed.unflatten(2, (key_dim, block)).mT, value)
        return cls(packed, value, key_order.to(cache.device, torch.long))

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.value_blocks.shape[2]

    @property
    def kv_heads(self) -> int:
        return self.value_blocks.shape[1]

    @property
    def key_dim(self) -> int:
        width = self.key_blocks.shape[-1]
        return width if self.key_order is None else width // self.block_size

    def keys_of(self, block_ids: Int[Tensor, "*ids"]) -> Float[Tensor, "*ids kv_heads block key_dim"]:
        """Return a copy of the keys of some blocks, unused slots included."""
        blocks = self.key_blocks[block_ids]
        if self.key_order is None:
            return blocks
        return blocks[..., self.key_order].unflatten(-1, (self.block_size, self.key_dim))

    def gather(
        self, block_ids: Int[Tensor, " blocks"], start: int, end: int, *, values: bool = True
    ) -> tuple[Float[Tensor, "kv_heads tokens key_dim"], Float[Tensor, "kv_heads tokens value_dim"] | None]:
        """Return keys and values of the tokens from `start` to `end` of a request.

        Args:
            block_ids: the request's row of the block table. Only blocks that overlap the tokens are read.
            start: first token.
            end: token after the last.
            values: also return the values; otherwise None.
        """
        first, last = start // self.block_size, -(-end // self.block_size)
        ids = block_ids[first:last]
        tokens = slice(start - first * self.block_size, end - first * self.block_size)

        def joined(blocks: Float[Tensor, "blocks kv_heads block width"]) -> Float[Tensor, "kv_heads tokens width"]:
            return blocks.transpose(0, 1).flatten(1, 2)[:, tokens]

        return joined(self.keys_of(ids)), joined(self.value_blocks[ids]) if values else None

    def tokens(
        self, block_ids: Int[Tensor, " tokens"], slots: Int[Tensor, " tokens"], *, values: bool = True
    ) -> tuple[Float[Tensor, "tokens kv_heads key_dim"], Float[Tensor, "tokens kv_heads value_dim"] | None]:
        """Return key and value of one token per block.

        Args:
            block_ids: block of each token.
            slots: index of each token in its block.
            values: also return the values; otherwise None.
        """
        if self.key_order is None:
            key = self.key_blocks[block_ids, :, slots]
        else:
            columns = self.key_order.view(self.block_size, self.key_dim)[slots]
            key = self.key_blocks[block_ids].gather(2, columns[:, None].expand(-1, self.kv_heads, -1))
        return key, self.value_blocks[block_ids, :, slots] if values else None
