"""Which tokens of a text each rank holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from clearhead._utils.checks import check_int, describe
from clearhead._utils.tensor_checks import check_axis, check_dense_tensor


@dataclass(frozen=True)
class Layout:
    """A text of `length` tokens over `ranks`: in twice as many pieces, of which rank r holds piece r and, from the
    end, piece r. Under a causal mask, where later queries see more, all ranks then have about the same to do.

    Lengths need not divide: pieces differ by a token at most.

    >>> [Layout(10, 2).pieces(rank) for rank in (0, 1)]
    [[slice(0, 2, None), slice(7, 10, None)], [slice(2, 5, None), slice(5, 7, None)]]
    """

    length: int
    ranks: int

    def __post_init__(self) -> None:
        check_int("length", self.length, least=0)
        check_int("ranks", self.ranks)

    def pieces(self, rank: int) -> list[slice]:
        """The tokens of a rank, in the order in which it holds them."""
        if not 0 <= check_int("rank", rank, least=0) < self.ranks:
            raise ValueError(f"rank is {rank}; expected one of 0 to {self.ranks - 1}")
        last = 2 * self.ranks
        return [slice(self._edge(piece), self._edge(piece + 1)) for piece in (rank, last - 1 - rank)]

    def count(self, rank: int) -> int:
        """How many tokens a rank holds."""
        return sum(piece.stop - piece.start for piece in self.pieces(rank))

    def shard(self, whole: Tensor, rank: int, dim: int = -2) -> Tensor:
        """A rank's tokens of a whole tensor."""
        whole = check_dense_tensor("whole", whole, "a tensor of the whole text")
        dim = check_axis("dim", dim, whole.ndim)
        if whole.shape[dim] != self.length:
            raise ValueError(f"whole has {whole.shape[dim]} tokens on axis {dim}; expected the layout's {self.length}")
        parts = [whole.narrow(dim, piece.start, piece.stop - piece.start) for piece in self.pieces(rank)]
        return torch.cat(parts, dim=dim)

    def joined(self, shards: Sequence[Tensor], dim: int = -2) -> Tensor:
        """All ranks' tokens in the order of the text."""
        if not isinstance(shards, Sequence) or len(shards) != self.ranks:
            raise ValueError(f"shards is {describe(shards)}; expected a sequence of {self.ranks} tensors, one per rank")
        for shard in shards:
            check_dense_tensor("shards", shard, "tensors as layout.shard gives them")
            dim = check_axis("dim", dim, shard.ndim)
        firsts, lasts = [], []
        for rank, shard in enumerate(shards):
            first, last = (piece.stop - piece.start for piece in self.pieces(rank))
            if shard.shape[dim] < first + last:
                held = f"shards has {shard.shape[dim]} tokens of rank {rank}"
                raise ValueError(f"{held} on dim {dim}; expected {first + last}")
            firsts.append(shard.narrow(dim, 0, first))
            lasts.append(shard.narrow(dim, first, last))
        return torch.cat([*firsts, *reversed(lasts)], dim=dim)

    def own_rank(self, group: ProcessGroup | None) -> int:
        """This process's number in the group, which must have as many as the layout."""
        if not isinstance(group, ProcessGroup | None):
            raise TypeError(f"group is {describe(group)}; expected a ProcessGroup, or None for all ranks")
        if not distributed.is_initialized():
            raise RuntimeError("group has no ranks; call torch.distributed.init_process_group(…) first")
        ranks = distributed.get_world_size(group)
        if ranks != self.ranks:
            raise ValueError(f"layout is for {self.ranks} ranks, but the group has {ranks}; expected the same")
        return distributed.get_rank(group)

    def _edge(self, piece: int) -> int:
        return piece * self.length // (2 * self.ranks)
