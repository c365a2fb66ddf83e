"""Logits of one tile, computed in place in scratch memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from clearhead.ops._precision import uses_tf32
from clearhead.ops.call import AttentionCall
from clearhead.ops.key_ranges import KeyRanges
from clearhead.ops.tiled.schedule import FoldedShape, KeyTile, QueryBlock

MIN_EXP_ARGUMENT = {torch.float32: -87.0, torch.float64: -708.0}  # exp of less is not a normal number


@dataclass(frozen=True, eq=False)
class FoldedCall:
    """Everything logits follow from, with query heads folded over the key heads they read.

    `key` has the dtype of the logits; axes of 1 in `dense` and `bias` broadcast.
    """

    query: Float[Tensor, "batch kv_heads group q_len key_dim"]  # as it came; a block's rows are scaled when it is met
    key: Float[Tensor, "batch kv_heads kv_len key_width"]  # key_dim, and a column of ones beside `shift_in_product`
    scale: float
    positions: Int[Tensor, "#batch q_len"]
    ranges: KeyRanges | None
    dense: Bool[Tensor, "#batch #kv_heads #group #q_len #kv_len"] | None
    bias: Float[Tensor, "#batch #kv_heads #group #q_len #kv_len"] | None
    slopes: Float[Tensor, "kv_heads group"] | None
    softcap: float | None
    shift: Float[Tensor, "batch kv_heads group q_len"] | None = None  # taken off every score of its row
    shift_in_product: bool = False  # as one more column of the query, beside a column of ones in the key

    @classmethod
    def from_call(cls, call: AttentionCall) -> FoldedCall:
        """Fold the query heads of a call over its key heads, in the dtype logits are computed in."""
        dtype, kv_heads = call.compute_dtype, call.key.shape[1]
        lowered, bias, slopes = call.lower(), call.tensor_bias, call.slopes
        return cls(
            query=fold_heads(call.query, kv_heads),
            key=call.key.to(dtype),
            scale=call.scale,
            positions=call.positions(),
            ranges=lowered.ranges,
            dense=None if lowered.dense is None else fold_heads(lowered.dense, kv_heads),
            bias=None if bias is None else fold_heads(bias.to(dtype), kv_heads),
            slopes=None if slopes is None else slopes.to(dtype).view(kv_heads, -1),
            softcap=call.softcap,
        )

    @property
    def shape(self) -> FoldedShape:
        """batch, kv_heads, group, q_len, kv_len"""
        batch, kv_heads, group, q_len, _ = self.query.shape
        return batch, kv_heads, group, q_len, self.key.shape[2]

    def window(self, rows: slice, keys: slice) -> FoldedCall:
        """The same for a rectangle of the matrix; positions and ranges count from its first key."""

        def cut(tensor: Tensor | None) -> Tensor | None:
            whole = QueryBlock(slice(None), slice(None), slice(None), rows)
            return None if tensor is None else slice_broadcast(tensor, whole, keys)

        ranges = self.ranges
        if ranges is not None:
            ranges = (ranges[..., rows] - keys.start).clamp(0, keys.stop - keys.start)
        return replace(
            self,
            query=self.query[..., rows, :],
            key=self.key[..., keys, :],
            positions=self.positions[:, rows] - keys.start,
            ranges=ranges,
            dense=cut(self.dense),
            bias=cut(self.bias),
        )

    def minus_lse(self, lse: Float[Tensor, "batch kv_heads group q_len"]) -> FoldedCall:
        """The same with log-sum-exp taken off: log weights instead of scores."""
        lse = torch.where(lse == -torch.inf, 0.0, lse).contiguous()  # a row without a key is all -inf already
        exact_product = self.query.device.type == "cpu" and not uses_tf32()
        if self.softcap is not None or not exact_product:
            return replace(self, shift=lse)
        # within the product it costs nothing; at reduced precision it would lose its digits
        ones = self.key.new_ones((*self.key.shape[:-1], 1))
        return replace(self, shift=lse, shift_in_product=True, key=torch.cat([self.key, ones], dim=-1))

    def underflow_bound(self) -> Callable[[QueryBlock], bool]:
        """Whether a block may have scores so far apart that weights leave the normal numbers.

        By Cauchy and Schwarz; with a bias anything is possible. Where not, the scores themselves are small as well.
        """
        if 0 in self.shape or self.bias is not None or self.slopes is not None:
            return lambda block: True
        longest_query, longest_key = (t.norm(dim=-1, dtype=self.key.dtype).amax(dim=-1) for t in (self.query, self.key))
        spread = 2 * abs(self.scale) * longest_query * longest_key[:, :, None] + math.log(self.shape[4])
        far: list[list[list[bool]]] = (spread > -MIN_EXP_ARGUMENT[self.key.dtype]).tolist()
        return lambda block: any(
            head for keys in far[block.batch] for group in keys[block.kv_heads] for head in group[block.group]
        )

    def masked(self, tile: KeyTile) -> bool:
        """Whether some cell of the tile may be forbidden."""
        return tile.mask is not None or self.dense is not None or self.bias is not None


class ScratchMemory:
    """Memory for tiles, used again and again: fresh memory for each tile costs more than its exponentials."""

    def __init__(self, cells: int, like: Tensor) -> None:
        self.memory = like.new_empty(cells)
        self.views: dict[tuple[int, ...], Tensor] = {}

    def take(self, *shape: int) -> Tensor:
        """The beginning of it in a shape."""
        view = self.views.get(shape)
        if view is None:
            view = self.views[shape] = self.memory[: math.prod(shape)].view(shape)
        return view


class BlockLogits:
    """The tiles of one block. In them each key head comes with all the rows that read it: `[key_heads, rows, keys]`.

    On small machines a call costs as much as a thousand cells, so tiles stay in that shape and are seen as
    `[batch, kv_heads, group, rows, keys]` only where something has to broadcast.
    """

    def __init__(self, scoring: FoldedCall, block: QueryBlock) -> None:
        self.scoring, self.block = scoring, block
        query = scoring.query[block]
        self.shape = query.shape[:4]
        added = (scoring.slopes, scoring.bias, scoring.dense, None if scoring.shift_in_product else scoring.shift)
        self.plain = all(tensor is None for tensor in added)  # scores are products and nothing else
        query = query.flatten(2, 3).flatten(0, 1).to(scoring.key.dtype)
        width = scoring.key.shape[3]
        self.query = query.new_empty((*query.shape[:2], width))  # [key_heads, rows, key_dim]
        torch.mul(query, scoring.scale, out=self.query[..., : query.shape[2]])
        if scoring.shift is not None and scoring.shift_in_product:
            torch.neg(self.flatten_heads(scoring.shift), out=self.query[..., -1])
        self.key = scoring.key[block.batch, block.kv_heads].flatten(0, 1).mT  # [key_heads, key_dim, kv_len]

    def flatten_heads(self, tensor: Float[Tensor, "_ _ _ _ *rest"]) -> Float[Tensor, "key_heads folded_rows *rest"]:
        """The block's part of something that every row has."""
        return tensor[self.block].flatten(2, 3).flatten(0, 1)

    def unflatten_heads(
        self, rows: Float[Tensor, "key_heads folded_rows *rest"]
    ) -> Float[Tensor, "batch kv_heads group rows *rest"]:
        """The inverse of `flat`."""
        return rows.reshape(*self.shape, *rows.shape[2:])

    def tile_shape(self, tile: KeyTile) -> tuple[int, int, int]:
        """key_heads, rows, keys"""
        return self.query.shape[0], self.query.shape[1], tile.keys.stop - tile.keys.start

    def products(
        self, tile: KeyTile, out: Float[Tensor, "key_heads rows keys"]
    ) -> Float[Tensor, "key_heads rows keys"]:
        """softcap(scale · Q Kᵀ)"""
        logits = torch.bmm(self.query, self.key[..., tile.keys], out=out)
        if self.scoring.softcap is not None:
            logits.div_(self.scoring.softcap).tanh_().mul_(self.scoring.softcap)
        return logits

    def apply_bias_and_mask_(
        self, logits: Float[Tensor, "key_heads rows keys"], tile: KeyTile
    ) -> Float[Tensor, "key_heads rows keys"]:
        """What comes after the product, in place: shift, bias, −inf where the mask forbids."""
        scoring, block = self.scoring, self.block
        if self.plain and tile.mask is None:
            return logits
        view = logits.view(*self.shape, -1)
        if scoring.shift is not None and not scoring.shift_in_product:
            view.sub_(scoring.shift[block][..., None])
        if scoring.slopes is not None:
            slopes = scoring.slopes[block.kv_heads, block.group, None, None]
            view.addcmul_(slopes, self.distance(tile.keys), value=-1)
        if scoring.bias is not None:
            view.add_(slice_broadcast(scoring.bias, block, tile.keys))
        # on the CPU adding -inf is many times faster than filling under a mask that broadcasts
        if tile.mask is not None:
            view.add_(tile.mask)
        if scoring.dense is not None:
            view.add_(torch.where(slice_broadcast(scoring.dense, block, tile.keys), 0.0, -torch.inf).to(view.dtype))
        return logits

    def positions(self) -> Int[Tensor, "#batch rows"]:
        """Where the block's queries stand."""
        batch = slice(None) if self.scoring.positions.shape[0] == 1 else self.block.batch
        return self.scoring.positions[batch, self.block.rows]

    def distance(self, keys: slice) -> Float[Tensor, "#batch 1 1 rows keys"]:
        """|position of query − key|"""
        # counted from the first of these keys, so that float32 holds them exactly wherever the tile lies
        rows = (self.positions() - keys.start).to(self.key.dtype)
        key_offsets = torch.arange(keys.stop - keys.start, device=self.key.device, dtype=self.key.dtype)
        return (rows[:, None, None, :, None] - key_offsets).abs_()


def exp_(
    logs: Float[Tensor, "*tile"],
    *,
    masked: bool,
    may_underflow: bool,
    out: Float[Tensor, "*tile"] | None = None,
) -> Float[Tensor, "*tile"]:
    """exp, in place or into `out`, without the slow path below the smallest normal number.

    MKL's exp takes 20 to 200 times longer where the result underflows, which masked tiles and sharp heads are full of.
    So `logs` is cut off there, in place; what a masked tile forbids is then set to exactly 0.
    """
    lowest = MIN_EXP_ARGUMENT[logs.dtype]
    if masked or may_underflow:
        logs.clamp_(min=lowest)
    weights = torch.exp(logs, out=logs if out is None else out)
    return torch.threshold_(weights, math.exp(lowest) * (1 + 1e-5), 0.0) if masked else weights


def slice_broadcast(tensor: Tensor, block: QueryBlock, keys: slice) -> Tensor:
    """The part of a broadcasting `[batch, kv_heads, group, q_len, kv_len]` tensor that belongs to a tile."""
    index = (*block, keys)
    return tensor[tuple(slice(None) if size == 1 else part for size, part in zip(tensor.shape, index, strict=True))]


def fold_heads(tensor: Shaped[Tensor, "batch heads *rest"], kv_heads: int) -> Shaped[Tensor, "batch _ _ *rest"]:
    """Query heads over the key heads they read; a heads axis of size 1 stays one that broadcasts."""
    return tensor.unflatten(1, (1, 1) if tensor.shape[1] == 1 else (kv_heads, -1))
