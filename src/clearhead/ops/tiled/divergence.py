"""Kullback–Leibler divergence of the rows of two matrices, in one pass over the tiles of both.

With teacher P, student Q and m = Σⱼ P[i, j], the gradient of KL(P[i] ‖ Q[i]) with respect to the student's score (i, j)
is m · Q[i, j] − P[i, j]. A loss multiplies it by a factor for each row.

Both calls have the same mask and the same numbers of query heads and key heads. The student has neither softcap nor
bias.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.ops._precision import without_autocast
from clearhead.ops.call import AttentionCall
from clearhead.ops.tiled.logits import BlockLogits, FoldedCall, ScratchMemory, exp_, fold_heads
from clearhead.ops.tiled.schedule import KeyTile, QueryBlock, iterate_tiles, max_tile_cells

Lse = Float[Tensor, "batch heads q_len"]
Cells = Float[Tensor, "key_heads rows keys"]


class Divergence(NamedTuple):
    """Divergence of each row, and the gradients of the sum over all rows, which are empty if not requested."""

    rows: Float[Tensor, "batch heads q_len"]
    query: Tensor  # [batch, heads, q_len, key_dim]
    key: Tensor  # [batch, kv_heads, kv_len, key_dim]


@without_autocast
def divergence(
    teacher: AttentionCall, lse: Lse, student: AttentionCall, student_lse: Lse, with_gradient: bool
) -> Divergence:
    """Return KL(teacher ‖ student) of each row and, if requested, the gradients of the student's queries and keys."""
    first, second = _Matrix(teacher, lse), _Matrix(student, student_lse)
    query, key = second.folded.query, second.folded.key
    rows = lse.new_zeros(query.shape[:4])
    grad_query, grad_key = (lse.new_zeros(t.shape if with_gradient else 0) for t in (query, key.mT))
    for pair in _iterate_blocks(first, second):
        block, logits = pair.block, pair.student
        block_query = logits.query[..., : key.shape[3]]  # without the column that subtracts lse
        block_grad_query = torch.zeros_like(block_query)
        block_rows: list[Tensor] = []
        for tile in pair.tiles:
            teacher_logs, weights = pair.teacher_weights(tile)
            logs = pair.student_logs(tile)
            if second.folded.masked(tile):  # in masked cells the weight is 0, and 0 · inf is nan
                logs.clamp_(min=torch.finfo(logs.dtype).min / 2)
            block_rows.append(teacher_logs.sub_(logs).mul_(weights).sum(dim=-1))
            if with_gradient:
                grad_scores = pair.grad_scores_(logs, weights, tile)
                block_grad_query.baddbmm_(grad_scores, key[block.batch, block.kv_heads, tile.keys].flatten(0, 1))
                _add_columns(grad_key, block, tile, block_query, grad_scores)
        if block_rows:  # torch adds pairwise, so the rounding error does not grow with the number of tiles
            rows[block] = logits.unflatten_heads(torch.stack(block_rows).sum(dim=0))
        if with_gradient:
            grad_query[block] = logits.unflatten_heads(block_grad_query.mul_(student.scale))
    if not with_gradient:
        return Divergence(rows.flatten(1, 2), grad_query, grad_key)
    return Divergence(rows.flatten(1, 2), grad_query.flatten(1, 2), grad_key.mT.contiguous())


@without_autocast
def key_gradient(
    teacher: AttentionCall, lse: Lse, student: AttentionCall, student_lse: Lse, grad: Lse
) -> Float[Tensor, "batch kv_heads kv_len key_dim"]:
    """Return the gradient of a loss with respect to the student's keys, from that of the divergence of each row."""
    first, second = _Matrix(teacher, lse), _Matrix(student, student_lse)
    key = second.folded.key
    factors = fold_heads(grad.to(lse.dtype), key.shape[1])
    grad_key = lse.new_zeros(key.mT.shape)
    for pair in _iterate_blocks(first, second):
        block_factors = pair.student.flatten_heads(factors)[..., None]
        if not block_factors.any():  # rows that the loss ignores, such as a prompt or padding
            continue
        block_query = pair.student.query[..., : key.shape[3]] * block_factors
        for tile in pair.tiles:
            _, weights = pair.teacher_weights(tile)
            grad_scores = pair.grad_scores_(pair.student_logs(tile), weights, tile)
            _add_columns(grad_key, pair.block, tile, block_query, grad_scores)
    return grad_key.mT.contiguous()


def _add_columns(
    grad_key: Float[Tensor, "batch kv_heads key_dim kv_len"],
    block: QueryBlock,
    tile: KeyTile,
    query: Float[Tensor, "key_heads rows key_dim"],
    grad_scores: Cells,
) -> None:
    """Add the gradient of a tile's keys in place, transposed, because Dᵀ · Q takes up to 1.5 × the time of Qᵀ · D."""
    part = grad_key[block.batch, block.kv_heads, :, tile.keys]
    part += torch.bmm(query.mT, grad_scores).view(part.shape)


class _Matrix:
    """One matrix of a pair, with scratch memory for the log weights of a tile."""

    def __init__(self, call: AttentionCall, lse: Lse) -> None:
        self.folded = FoldedCall.from_call(call)
        self.log_weights = self.folded.minus_lse(fold_heads(lse, call.key.shape[1]))
        self.may_underflow = self.folded.underflow_bound()
        self.cells = max_tile_cells(self.folded.shape, lse.device)
        self.scratch = ScratchMemory(self.cells, lse)
        self.row_sums: Float[Tensor, "batch kv_heads group q_len"] | None = None  # None: 1 in each row with a key
        if call.sinks is not None:
            self.row_sums = fold_heads(-torch.expm1(call.sinks.to(lse.dtype)[:, None] - lse), call.key.shape[1])


def _iterate_blocks(teacher: _Matrix, student: _Matrix) -> Iterator[_BlockPair]:
    memory, folded = teacher.scratch.memory, student.folded
    spare = ScratchMemory(teacher.cells, memory)
    for block, tiles in iterate_tiles(folded.shape, folded.ranges, memory.dtype, memory.device):
        yield _BlockPair(teacher, student, spare, block, tiles)


class _BlockPair:
    """One block of both matrices. Its tiles are computed in memory that the next tile overwrites."""

    def __init__(
        self, teacher: _Matrix, student: _Matrix, spare: ScratchMemory, block: QueryBlock, tiles: Iterable[KeyTile]
    ) -> None:
        self.matrices, self.spare, self.block, self.tiles = (teacher, student), spare, block, tiles
        self.teacher, self.student = (BlockLogits(matrix.log_weights, block) for matrix in self.matrices)
        self.underflows = [matrix.may_underflow(block) for matrix in self.matrices]
        self.row_sums = None if teacher.row_sums is None else self.teacher.flatten_heads(teacher.row_sums)[..., None]

    def teacher_weights(self, tile: KeyTile) -> tuple[Cells, Cells]:
        """Return the teacher's log weights, clamped so that they are finite, and its weights."""
        matrix, shape = self.matrices[0], self.teacher.tile_shape(tile)
        logs = self.teacher.products(tile, matrix.scratch.take(*shape))
        self.teacher.apply_bias_and_mask_(logs, tile)
        masked = matrix.folded.masked(tile)
        return logs, exp_(logs, masked=masked, may_underflow=self.underflows[0], out=self.spare.take(*shape))

    def student_logs(self, tile: KeyTile) -> Cells:
        """Return the student's log weights."""
        logs = self.student.products(tile, self.matrices[1].scratch.take(*self.student.tile_shape(tile)))
        return self.student.apply_bias_and_mask_(logs, tile)

    def grad_scores_(self, logs: Cells, teacher_weights: Cells, tile: KeyTile) -> Cells:
        """Replace the student's log weights by the gradient of its scores, m · Q − P."""
        masked = self.matrices[1].folded.masked(tile)
        weights = exp_(logs, masked=masked, may_underflow=self.underflows[1])
        if self.row_sums is not None:
            weights.mul_(self.row_sums)
        return weights.sub_(teacher_weights)
