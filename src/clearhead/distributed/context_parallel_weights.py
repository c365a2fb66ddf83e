"""`SequenceWeights`: an attention matrix whose rows live on different ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from clearhead._utils.checks import check_int
from clearhead.distributed._collectives import gathered, summed
from clearhead.distributed.layout import Layout
from clearhead.ops.statistics import AttentionStatistics, Reduce, TopK
from clearhead.weights.matrix import AttentionWeights


class SequenceWeights:
    """The matrix `[batch, heads, n, n]` of a text over ranks. Made by `sequence_attention(…, return_weights=True)`.

    Each rank computes statistics of its own rows, and every rank gets those of all: all ranks have to ask for the same
    thing. `parts` are a rank's own rows, as (tokens, AttentionWeights) pairs.
    """

    def __init__(
        self, layout: Layout, parts: Sequence[tuple[slice, AttentionWeights]], group: ProcessGroup | None
    ) -> None:
        self.layout, self.parts, self.group = layout, tuple(parts), group

    @property
    def shape(self) -> torch.Size:
        batch, heads, _, kv_len = self.parts[0][1].shape
        return torch.Size((batch, heads, self.layout.length, kv_len))

    def __repr__(self) -> str:
        batch, heads, q_len, kv_len = self.shape
        own = ", ".join(f"{piece.start} to {piece.stop - 1}" for piece, _ in self.parts if piece.stop > piece.start)
        return (
            f"SequenceWeights({batch} × {heads} heads × {q_len} queries × {kv_len} keys; own queries {own or 'none'})"
        )

    def entropy(self) -> Float[Tensor, "batch heads q_len"]:
        """As `AttentionWeights.entropy`."""
        return self.observe(entropy=True).entropy

    def received(self) -> Float[Tensor, "batch heads kv_len"]:
        """As `AttentionWeights.received`."""
        return self.observe(received=True).received

    def distance(self) -> Float[Tensor, "batch heads q_len"]:
        """As `AttentionWeights.distance`."""
        return self.observe(distance=True).distance

    def topk(self, k: int) -> TopK:
        """As `AttentionWeights.topk`."""
        return self.observe(top=check_int("k", k)).top

    @torch.no_grad()
    def observe(
        self, *, entropy: bool = False, received: bool = False, distance: bool = False, top: int = 0
    ) -> AttentionStatistics:
        """Several statistics in one sweep over a rank's own rows."""
        seen = [own.observe(entropy=entropy, received=received, distance=distance, top=top) for _, own in self.parts]

        def rows(own: list[Tensor]) -> Tensor:
            return self.layout.joined(gathered(torch.cat(own, dim=2), self.group), dim=2)

        return AttentionStatistics(
            entropy=rows([part.entropy for part in seen]) if entropy else None,
            distance=rows([part.distance for part in seen]) if distance else None,
            received=self._added([part.received for part in seen]) if received else None,
            top=TopK(rows([part.top.weights for part in seen]), rows([part.top.keys for part in seen]))
            if top
            else None,
        )

    @torch.no_grad()
    def pool(self, rows: int, cols: int, *, reduce: Reduce = "mean") -> Float[Tensor, "batch heads rows cols"]:
        """The whole matrix in `rows` × `cols` bins, as `AttentionWeights.pool` draws them."""
        rows, cols = check_int("rows", rows), check_int("cols", cols)
        if reduce not in ("mean", "max"):
            raise ValueError(f"reduce is {reduce!r}; expected 'mean' or 'max'")
        batch, heads, q_len, kv_len = self.shape
        first = self.parts[0][1]
        found = torch.zeros(batch, heads, rows, cols, dtype=torch.float64, device=first.device)
        for number in range(rows):
            start, end = number * q_len // rows, -(-(number + 1) * q_len // rows)
            for piece, own in self.parts:
                low, high = max(start, piece.start), min(end, piece.stop)
                if low >= high:
                    continue
                inside = ((low - piece.start, high - piece.start), (0, kv_len))
                band = own.pool(1, cols, reduce=reduce, window=inside)[:, :, 0].double()
                if reduce == "max":
                    found[:, :, number] = torch.maximum(found[:, :, number], band)
                else:
                    found[:, :, number] += band * ((high - low) / (end - start))
        distributed.all_reduce(
            found, distributed.ReduceOp.MAX if reduce == "max" else distributed.ReduceOp.SUM, group=self.group
        )
        return found.to(first.lse.dtype)

    def _added(self, parts: list[Tensor]) -> Tensor:
        total = torch.stack([own.double() for own in parts]).sum(dim=0)
        return summed(total, self.group).to(parts[0].dtype)
