"""`NativeTopK`: largest log weights of each row, by functions in C++."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.ops.native.functions import TopCall, address, first_head, native_functions
from clearhead.ops.tiled.logits import BlockLogits, FoldedCall
from clearhead.ops.tiled.schedule import KeyTile

MAX_TOP = 64  # limit of the C++ function, which inserts each log weight into a sorted list


class NativeTopK:
    """Largest log weights of each row and their keys, collected tile by tile. The first of equal ones comes first.

    Args:
        folded: the call.
        top: number of log weights of each row.
    """

    def __init__(self, folded: FoldedCall, top: int) -> None:
        self._shape = folded.shape
        self.values = folded.key.new_full((*folded.shape[:4], top), -torch.inf)
        self._keys = torch.full_like(self.values, -1, dtype=torch.int32)
        self._call = TopCall(row_stride=folded.shape[3], top=top, threads=torch.get_num_threads())

    def start_block(self, logits: BlockLogits) -> None:
        """Begin a block of rows."""
        call, block = self._call, logits.block
        call.heads, call.rows = logits.shape[:3].numel(), logits.shape[3]
        first = (first_head(self._shape, block) * call.row_stride + block.rows.start) * call.top
        call.values, call.keys_of = address(self.values, first), address(self._keys, first)

    def add(self, logs: Float[Tensor, "key_heads rows keys"], tile: KeyTile) -> None:
        """Add the log weights of a tile."""
        call = self._call
        call.logs, call.first_key, call.keys = logs.data_ptr(), tile.keys.start, logs.shape[2]
        native_functions().add_top(call)

    @property
    def keys(self) -> Int[Tensor, "batch kv_heads group q_len top"]:
        """Keys of `values`; −1 for a masked key and for NaN."""
        return self._keys.long()

    def end_block(self) -> None:
        """End a block of rows, whose largest log weights are complete."""
