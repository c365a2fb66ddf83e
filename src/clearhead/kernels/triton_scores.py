"""Scores of one tile in Triton, in base 2: what the kernels on CUDA have in common.

Everything a kernel reads comes as named tuples of pointers and strides; what is absent is None, and the code for it is
never compiled.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from clearhead.kernels.operation import Inputs

LOG2_E = tl.constexpr(1.4426950408889634)


class Matrix(NamedTuple):
    """A pointer and the strides of its four axes, 0 where it broadcasts."""

    pointer: Any
    batch: Any
    head: Any
    row: Any
    column: Any

    @classmethod
    def of(cls, tensor: Tensor, shape: tuple[int, ...] | None = None) -> Matrix:
        """A tensor as it lies in memory, broadcast to a shape."""
        return cls(tensor, *(tensor if shape is None else tensor.expand(shape)).stride())


class Scores(NamedTuple):
    """What the scores of a problem follow from."""

    query: Matrix
    key: Matrix
    ranges: Any  # [ranges, 2, batch or 1, q_len], contiguous
    range_batch: Any  # stride of its batch axis
    range_side: Any  # stride of its second axis
    dense: Any
    bias: Any
    slopes: Any
    starts: Any
    start_stride: Any
    scale: Any  # of products; with a softcap, of what goes into tanh
    softcap: Any  # times log2 e
    heads: Any
    group: Any
    q_len: Any
    kv_len: Any

    @classmethod
    def of(cls, inputs: Inputs) -> Scores:
        query, key = inputs.query, inputs.key
        batch, heads, q_len, _ = query.shape
        kv_heads, kv_len = key.shape[1:3]
        cells = (batch, heads, q_len, kv_len)
        ranges = None if inputs.ranges is None else inputs.ranges.contiguous()
        softcap = inputs.softcap
        return cls(
            Matrix.of(query),
            Matrix.of(key),
            ranges,
            0 if ranges is None or ranges.shape[2] == 1 else q_len,
            0 if ranges is None else ranges.shape[2] * q_len,
            None if inputs.dense is None else Matrix.of(inputs.dense.view(torch.uint8), cells),
            None if inputs.bias is None else Matrix.of(inputs.bias, cells),
            inputs.slopes,
            inputs.starts.to(query.device),
            0 if inputs.starts.shape[0] == 1 else 1,
            inputs.scale * LOG2_E.value if softcap is None else inputs.scale / softcap,
            None if softcap is None else softcap * LOG2_E.value,
            heads,
            heads // kv_heads,
            q_len,
            kv_len,
        )


@triton.jit
def at(matrix, batch, head, rows, columns):
    """Pointers to a tile, given rows and columns that broadcast; 64-bit, for tensors of more than 2³¹ elements."""
    start = matrix.pointer + batch * matrix.batch + head * matrix.head
    return start + rows.to(tl.int64) * matrix.row + columns.to(tl.int64) * matrix.column


@triton.jit
def tile_of(matrix, batch, head, rows, columns, length, DIM: tl.constexpr, MASKED: tl.constexpr):
    """Rows of queries, keys or values; only a tile that may reach beyond the last, or a padded width, needs a mask."""
    pointers = at(matrix, batch, head, rows[:, None], columns[None, :])
    if MASKED:
        return tl.load(pointers, (rows < length)[:, None] & (columns < DIM)[None, :], other=0.0)
    if columns.shape[0] == DIM:
        return tl.load(pointers)
    return tl.load(pointers, (columns < DIM)[None, :], other=0.0)


@triton.jit
def store_rows(matrix, batch, head, rows, columns, values, length, DIM: tl.constexpr):
    """The inverse of `tile_of`, in the matrix's own dtype."""
    inside = (rows < length)[:, None] & (columns < DIM)[None, :]
    tl.store(
        at(matrix, batch, head, rows[:, None], columns[None, :]), values.to(matrix.pointer.dtype.element_ty), inside
    )


@triton.jit
def dot(left, right, added, PRECISION: tl.constexpr):
    """left · right + added, in float32."""
    if PRECISION == "upcast":  # the interpreter does not know bfloat16 products; in float32 they are the same
        return tl.dot(left.to(tl.float32), right.to(tl.float32), added, input_precision="ieee")
    return tl.dot(left, right, added, input_precision=PRECISION)


@triton.jit
def tanh(x):
    """Exact to the last digits near 0 too, where 1 − e^(−2x) would lose them."""
    square = x * x
    small = x * (1 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * (62 / 2835)))))
    falling = tl.exp2(tl.abs(x) * (-2 * LOG2_E))
    large = (1 - falling) / (1 + falling)
    return tl.where(tl.abs(x) < 0.2, small, tl.where(x < 0, -large, large))


@triton.jit
def scored(products, scores, batch, head, rows, keys, first, last, MASKED: tl.constexpr):
    """log2(e) · (softcap(scale · Q Kᵀ) + bias), −inf where a key is forbidden or none.

    `rows` and `keys` broadcast to the shape of the tile, either way round; `first` and `last` are the ends of each
    row's range of keys.
    """
    result = products * scores.scale
    if scores.softcap is not None:
        result = scores.softcap * tanh(result)
    inside = (rows < scores.q_len) & (keys < scores.kv_len)
    if scores.bias is not None:
        added = tl.load(at(scores.bias, batch, head, rows, keys), inside, other=0.0)
        result += added.to(tl.float32) * LOG2_E
    if scores.slopes is not None:
        result -= tl.load(scores.slopes + head).to(tl.float32) * LOG2_E * distance(scores, batch, rows, keys)
    if MASKED:
        allowed = (keys >= first) & (keys < last)
        if scores.dense is not None:
            allowed &= tl.load(at(scores.dense, batch, head, rows, keys), inside, other=0) != 0
        result = tl.where(allowed, result, -float("inf"))
    return result


@triton.jit
def distance(scores, batch, rows, keys):
    """|position of query − key|; made float before they broadcast: a conversion for each row and key, not each cell."""
    position = tl.load(scores.starts + batch * scores.start_stride) + rows
    return tl.abs(position.to(tl.float32) - keys.to(tl.float32))


@triton.jit
def range_ends(scores, number, batch, rows):
    """Where each row's range of keys begins and ends; a row beyond the last has an empty one."""
    place = scores.ranges + 2 * number * scores.range_side + batch * scores.range_batch + rows
    inside = rows < scores.q_len
    return tl.load(place, inside, other=0), tl.load(place + scores.range_side, inside, other=0)


@triton.jit
def span(scores, first, last, rows, BLOCK_K: tl.constexpr):
    """Where tiles begin that some row of a block sees, that all see whole, that only some see again; and the end."""
    seen = first < last
    start = tl.min(tl.where(seen, first, scores.kv_len)) // BLOCK_K * BLOCK_K
    end = tl.max(tl.where(seen, last, 0))
    inside = rows < scores.q_len
    full = tl.cdiv(tl.max(tl.where(inside, tl.where(seen, first, scores.kv_len), 0)), BLOCK_K) * BLOCK_K
    partial = tl.min(tl.where(inside, tl.where(seen, last, 0), scores.kv_len)) // BLOCK_K * BLOCK_K
    # without a full tile, everything up to the end is partial
    none = full >= partial
    return start, tl.where(none, end, full), tl.where(none, end, partial), end
