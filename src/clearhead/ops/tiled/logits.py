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
from clearhead.ops.native import functions as native
from clearhead.ops.tiled.schedule import FoldedShape, KeyTile, QueryBlock

MIN_EXP_ARGUMENT = {torch.float32: -87.0, torch.float64: -708.0}  # below this, exp gives subnormal numbers or 0


@dataclass(frozen=True, eq=False)
class FoldedCall:
    """Inputs of the logits, with query heads folded over the key heads they read.

    `key` has the dtype of the logits. Axes of size 1 in `dense` and `bias` broadcast.
    """

    query: Float[Tensor, "batch kv_heads group q_len key_dim"]  # in its original dtype; `BlockLogits` scales it
    key: Float[Tensor, "batch kv_heads kv_len key_width"]  # key_dim, plus a column of ones if `shift_in_product`
    scale: float
    positions: Int[Tensor, "#batch q_len"]
    ranges: KeyRanges | None
    dense: Bool[Tensor, "#batch #kv_heads #group #q_len #kv_len"] | None
    bias: Float[Tensor, "#batch #kv_heads #group #q_len #kv_len"] | None
    slopes: Float[Tensor, "kv_heads group"] | None
    softcap: float | None
    shift: Float[Tensor, "batch kv_heads group q_len"] | None = None  # subtracted from every score of its row
    shift_in_product: bool = False  # subtract by one more column in the query and a column of ones in the key

    @classmethod
    def from_call(cls, call: AttentionCall) -> FoldedCall:
        """Fold the query heads of a call over its key heads, in the dtype of the logits."""
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
        """Shape of the matrix: batch, kv_heads, group, q_len, kv_len."""
        batch, kv_heads, group, q_len, _ = self.query.shape
        return batch, kv_heads, group, q_len, self.key.shape[2]

    def window(self, rows: slice, keys: slice) -> FoldedCall:
        """Return the call for a rectangle of the matrix. Positions and ranges are relative to its first key."""

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
        """Return the call with log-sum-exp subtracted from its logits, which gives log weights."""
        lse = torch.where(lse == -torch.inf, 0.0, lse).contiguous()  # in a row without a key, -inf - -inf gives nan
        exact_product = self.query.device.type == "cpu" and not uses_tf32()
        if self.softcap is not None or not exact_product:
            return replace(self, shift=lse)
        # in the matrix product the subtraction costs nothing, but reduced precision would round lse
        ones = self.key.new_ones((*self.key.shape[:-1], 1))
        return replace(self, shift=lse, shift_in_product=True, key=torch.cat([self.key, ones], dim=-1))

    def underflow_bound(self) -> Callable[[QueryBlock], bool]:
        """Return a function that returns whether weights of a block may underflow.

        Uses the Cauchy–Schwarz bound. Always True with a bias. If False, the scores are small too.
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
        """Return whether the tile may contain masked cells."""
        return tile.mask is not None or self.dense is not None or self.bias is not None


class ScratchMemory:
    """Reusable memory for tiles: allocating it for each tile takes longer than computing the exponentials."""

    def __init__(self, cells: int, like: Tensor) -> None:
        self.memory = like.new_empty(cells)
        self.views: dict[tuple[int, ...], Tensor] = {}

    def take(self, *shape: int) -> Tensor:
        """Return a view of the first elements in a shape."""
        view = self.views.get(shape)
        if view is None:
            view = self.views[shape] = self.memory[: math.prod(shape)].view(shape)
        return view


class BlockLogits:
    """Logits of the tiles of one block, `[key_heads, rows, keys]`: the rows of all query heads that read a key head.

    On small machines a torch call takes as long as a thousand cells. So tiles keep that shape, and are viewed as
    `[batch, kv_heads, group, rows, keys]` only to broadcast.
    """

    def __init__(self, folded: FoldedCall, block: QueryBlock) -> None:
        self.folded, self.block = folded, block
        query = folded.query[block]
        self.shape = query.shape[:4]
        added = (folded.slopes, folded.bias, folded.dense, None if folded.shift_in_product else folded.shift)
        self.plain = all(tensor is None for tensor in added)  # the products are the scores
        query = query.flatten(2, 3).flatten(0, 1).to(folded.key.dtype)
        width = folded.key.shape[3]
        self.query = query.new_empty((*query.shape[:2], width))  # [key_heads, rows, key_dim]
        torch.mul(query, folded.scale, out=self.query[..., : query.shape[2]])
        if folded.shift is not None and folded.shift_in_product:
            torch.neg(self.flatten_heads(folded.shift), out=self.query[..., -1])
        self.key = folded.key[block.batch, block.kv_heads].flatten(0, 1).mT  # [key_heads, key_dim, kv_len]

    def flatten_heads(self, tensor: Float[Tensor, "_ _ _ _ *rest"]) -> Float[Tensor, "key_heads folded_rows *rest"]:
        """Return the rows of this block, with all rows that read a key head on one axis."""
        return tensor[self.block].flatten(2, 3).flatten(0, 1)

    def unflatten_heads(
        self, rows: Float[Tensor, "key_heads folded_rows *rest"]
    ) -> Float[Tensor, "batch kv_heads group rows *rest"]:
        """Return rows with their heads on separate axes; the inverse of `flatten_heads`."""
        return rows.reshape(*self.shape, *rows.shape[2:])

    def tile_shape(self, tile: KeyTile) -> tuple[int, int, int]:
        """Return the shape of a tile: key_heads, rows, keys."""
        return self.query.shape[0], self.query.shape[1], tile.keys.stop - tile.keys.start

    def products(
        self, tile: KeyTile, out: Float[Tensor, "key_heads rows keys"]
    ) -> Float[Tensor, "key_heads rows keys"]:
        """Compute softcap(scale · Q Kᵀ) into `out`."""
        logits = torch.bmm(self.query, self.key[..., tile.keys], out=out)
        if self.folded.softcap is not None:
            logits.div_(self.folded.softcap).tanh_().mul_(self.folded.softcap)
        return logits

    def apply_bias_and_mask_(
        self, logits: Float[Tensor, "key_heads rows keys"], tile: KeyTile
    ) -> Float[Tensor, "key_heads rows keys"]:
        """Apply shift, bias and mask in place; masked keys get −inf."""
        folded, block = self.folded, self.block
        if self.plain and tile.mask is None:
            return logits
        view = logits.view(*self.shape, -1)
        if folded.shift is not None and not folded.shift_in_product:
            view.sub_(folded.shift[block][..., None])
        if folded.slopes is not None:
            slopes = folded.slopes[block.kv_heads, block.group, None, None]
            view.addcmul_(slopes, self.distance(tile.keys), value=-1)
        if folded.bias is not None:
            view.add_(slice_broadcast(folded.bias, block, tile.keys))
        # on the CPU, adding -inf is many times faster than masked_fill_ with a mask that broadcasts
        if tile.mask is not None:
            view.add_(tile.mask)
        if folded.dense is not None:
            view.add_(torch.where(slice_broadcast(folded.dense, block, tile.keys), 0.0, -torch.inf).to(view.dtype))
        return logits

    def positions(self) -> Int[Tensor, "#batch rows"]:
        """Return the positions of the block's queries."""
        batch = slice(None) if self.folded.positions.shape[0] == 1 else self.block.batch
        return self.folded.positions[batch, self.block.rows]

    def distance(self, keys: slice) -> Float[Tensor, "#batch 1 1 rows keys"]:
        """Return |position of query − key|."""
        # relative to the first of these keys, so that float32 represents positions exactly in any tile
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
    """Compute exp of contiguous logs, in place or into `out`, without the slow path below the smallest normal number.

    `logs` is clamped in place. In masked tiles, cells below that bound give exactly 0.

    MKL's exp takes 20 to 200 times longer if the result underflows, which is common in masked tiles and sharp heads.
    """
    if not native.unsupported_reasons(logs, logs.numel()):
        out = logs if out is None else out
        native.native_functions().exponentials(logs.data_ptr(), out.data_ptr(), logs.numel(), torch.get_num_threads())
        return out
    lowest = MIN_EXP_ARGUMENT[logs.dtype]
    if masked or may_underflow:
        logs.clamp_(min=lowest)
    weights = torch.exp(logs, out=logs if out is None else out)
    return torch.threshold_(weights, math.exp(lowest) * (1 + 1e-5), 0.0) if masked else weights


def slice_broadcast(tensor: Tensor, block: QueryBlock, keys: slice) -> Tensor:
    """Return a tile of a tensor that broadcasts to `[batch, kv_heads, group, q_len, kv_len]`."""
    index = (*block, keys)
    return tensor[tuple(slice(None) if size == 1 else part for size, part in zip(tensor.shape, index, strict=True))]


def fold_heads(tensor: Shaped[Tensor, "batch heads *rest"], kv_heads: int) -> Shaped[Tensor, "batch _ _ *rest"]:
    """Fold query heads over the key heads they read. A heads axis of size 1 becomes two that broadcast."""
    return tensor.unflatten(1, (1, 1) if tensor.shape[1] == 1 else (kv_heads, -1))
