"""`NativeSums`: entropies, distances and column sums of tiles, by functions in C++."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.ops.native.functions import SumCall, address, first_head, native_functions
from clearhead.ops.statistics import StatisticsRequest
from clearhead.ops.tiled.logits import BlockLogits, FoldedCall
from clearhead.ops.tiled.schedule import KeyTile


class NativeSums:
    """Entropies, distances and column sums of all tiles of a call. Each log weight is read once.

    Args:
        folded: the call.
        request: statistics to compute.
        keep_weights: return the weights of each tile.
    """

    def __init__(self, folded: FoldedCall, request: StatisticsRequest, *, keep_weights: bool) -> None:
        self._functions = native_functions()
        self._shape = folded.shape
        batch, kv_heads, group, q_len, kv_len = folded.shape
        self._starts = folded.positions[:, 0].long()

        def zeros(requested: bool, length: int) -> Tensor | None:
            if not requested:
                return None
            return folded.key.new_zeros((batch, kv_heads, group, length), dtype=torch.float64)

        self.entropies, self.distances = zeros(request.entropy, q_len), zeros(request.distance, q_len)
        self.columns = zeros(request.received, kv_len)
        self._scratch, self._weights = folded.key.new_empty(0), folded.key.new_empty(0) if keep_weights else None
        self._call = SumCall(row_stride=q_len, column_stride=kv_len, threads=torch.get_num_threads())

    def start_block(self, logits: BlockLogits, may_underflow: bool) -> None:
        """Begin a block of rows."""
        block, call = logits.block, self._call
        call.heads, call.rows = logits.shape[:3].numel(), logits.shape[3]
        self._head = first_head(self._shape, block)
        starts = self._starts if len(self._starts) == 1 else self._starts[block.batch]
        self._positions = (starts + block.rows.start).repeat_interleave(call.heads // len(starts))
        call.positions = self._positions.data_ptr()
        first_row = self._head * call.row_stride + block.rows.start
        call.entropies, call.distances = address(self.entropies, first_row), address(self.distances, first_row)

    def add(
        self, logs: Float[Tensor, "key_heads rows keys"], tile: KeyTile
    ) -> Float[Tensor, "key_heads rows keys"] | None:
        """Add the log weights of a tile. Return its weights, which the next tile overwrites, with `keep_weights`."""
        call = self._call
        call.logs, call.first_key, call.keys = logs.data_ptr(), tile.keys.start, logs.shape[2]
        call.columns = address(self.columns, self._head * call.column_stride + tile.keys.start)
        size = self._functions.scratch_size(call.heads, call.rows, call.keys)
        if len(self._scratch) < size:
            self._scratch = logs.new_empty(size)
        call.scratch = self._scratch.data_ptr()
        if self._weights is not None:
            if len(self._weights) < logs.numel():
                self._weights = logs.new_empty(logs.numel())
            call.weights = self._weights.data_ptr()
        self._functions.add_tile(call)
        return None if self._weights is None else self._weights[: logs.numel()].view(logs.shape)

    def end_block(self) -> None:
        """End a block of rows, whose sums are complete."""
