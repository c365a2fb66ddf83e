"""`ZigzagLayout`: distribution of the tokens of a text over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from clearhead._utils.checks import check_int, describe
from clearhead._utils.tensor_checks import check_axis, check_dense_tensor


@dataclass(frozen=True)
class ZigzagLayout:
    """Zigzag split of `length` tokens over `ranks`.

    The text is split into 2 · ranks chunks. Rank r holds chunk r from the start and chunk r from the end. This balances
    causal masks, where later queries attend to more keys. Chunk lengths differ by at most one token.

    Examples:
        >>> [ZigzagLayout(10, 2).chunks(rank) for rank in (0, 1)]
        [[slice(0, 2, None), slice(7, 10, None)], [slice(2, 5, None), slice(5, 7, None)]]
    """

    length: int
    ranks: int

    def __post_init__(self) -> None:
        check_int("length", self.length, least=0)
        check_int("ranks", self.ranks)

    def chunks(self, rank: int) -> list[slice]:
        """Return the tokens of a rank as slices of the text, in the order in which the rank stores them."""
        if not 0 <= check_int("rank", rank, least=0) < self.ranks:
            raise ValueError(f"rank is {rank}; expected one of 0 to {self.ranks - 1}")
        last = 2 * self.ranks
        return [slice(self._edge(chunk), self._edge(chunk + 1)) for chunk in (rank, last - 1 - rank)]

    def count(self, rank: int) -> int:
        """Return the number of tokens of a rank."""
        return sum(chunk.stop - chunk.start for chunk in self.chunks(rank))

    def shard(self, tensor: Tensor, rank: int, dim: int = -2) -> Tensor:
        """Return the tokens of a rank, from a tensor of the whole text."""
        tensor = check_dense_tensor("tensor", tensor, "a tensor of the whole text")
        dim = check_axis("dim", dim, tensor.ndim)
        if tensor.shape[dim] != self.length:
            tokens = f"tensor has {tensor.shape[dim]} tokens on axis {dim}"
            raise ValueError(f"{tokens}; expected the layout's {self.length}")
        chunks = [tensor.narrow(dim, chunk.start, chunk.stop - chunk.start) for chunk in self.chunks(rank)]
        return torch.cat(chunks, dim=dim)

    def unshard(self, shards: Sequence[Tensor], dim: int = -2) -> Tensor:
        """Concatenate the shards of all ranks in the order of the text: the inverse of `shard`."""
        if not isinstance(shards, Sequence) or len(shards) != self.ranks:
            raise ValueError(f"shards is {describe(shards)}; expected a sequence of {self.ranks} tensors, one per rank")
        for shard in shards:
            check_dense_tensor("shards", shard, "tensors from layout.shard")
            dim = check_axis("dim", dim, shard.ndim)
        firsts, lasts = [], []
        for rank, shard in enumerate(shards):
            first, last = (chunk.stop - chunk.start for chunk in self.chunks(rank))
            if shard.shape[dim] < first + last:
                tokens = f"shards has {shard.shape[dim]} tokens of rank {rank}"
                raise ValueError(f"{tokens} on dim {dim}; expected {first + last}")
            firsts.append(shard.narrow(dim, 0, first))
            lasts.append(shard.narrow(dim, first, last))
        return torch.cat([*firsts, *reversed(lasts)], dim=dim)

    def rank_in(self, group: ProcessGroup | None) -> int:
        """Return this process's rank in the group, which must have as many ranks as the layout."""
        if not isinstance(group, ProcessGroup | None):
            raise TypeError(f"group is {describe(group)}; expected a ProcessGroup, or None for all ranks")
        if not distributed.is_initialized():
            raise RuntimeError("group has no ranks; call torch.distributed.init_process_group(…) first")
        ranks = distributed.get_world_size(group)
        if ranks != self.ranks:
            raise ValueError(f"layout is for {self.ranks} ranks, but the group has {ranks}; expected the same")
        return distributed.get_rank(group)

    def _edge(self, chunk: int) -> int:
        return chunk * self.length // (2 * self.ranks)
