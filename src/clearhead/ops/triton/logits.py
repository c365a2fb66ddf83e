"""Scores of one tile in Triton, in base 2: what the kernels on CUDA have in common.

Everything a kernel reads comes as named tuples of pointers and strides; what is absent is None, and the code for it is
never compiled. Rows of queries, keys and values come through the GPU's copy engine where they lie as it wants them.
"""

# pyright: reportArgumentType=false

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from clearhead.ops.call import AttentionCall
from clearhead.ops.triton.config import padded_width

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
MIN_BIAS = tl.constexpr(-1e38)
PREPARED_ROWS_MULTIPLE = 128  # no block of queries is taller
TMA_ALIGNMENT_BYTES = 16  # bytes, in which the copy engine counts addresses and strides


class StridedTensor(NamedTuple):
    """A pointer, the strides of its four axes (0 where it broadcasts), and the lengths of the last two."""

    pointer: Any
    batch: Any
    head: Any
    row: Any
    column: Any
    rows: Any
    columns: Any

    @classmethod
    def from_tensor(cls, tensor: Tensor, shape: tuple[int, ...] | None = None) -> StridedTensor:
        """A tensor as it lies in memory, broadcast to a shape."""
        seen = tensor if shape is None else tensor.expand(shape)
        return cls(tensor, *seen.stride(), *seen.shape[2:])


class LogitParams(NamedTuple):
    """Kernel parameters from which logits follow, besides queries and keys.

    Kernels call this argument `logit_params`: a plain `params` clashes with a variable in Triton's launcher.
    """

    ranges: Any  # [ranges, 2, batch or 1, q_len], contiguous
    range_batch: Any  # stride of its batch axis
    range_side: Any  # stride of its second axis
    dense: Any
    bias: Any
    slopes: Any
    sinks: Any
    start: Any  # where the first query stands among the keys
    starts: Any  # or a tensor of that
    start_stride: Any
    scale: Any  # of products, above 0; with a softcap, of what goes into tanh
    softcap: Any  # times log2 e
    batches: Any
    heads: Any
    group: Any
    q_len: Any
    length: Any  # of what is prepared of each row
    kv_len: Any

    @classmethod
    def from_call(cls, call: AttentionCall) -> LogitParams:
        query, key = call.query, call.key
        batch, heads, q_len, _ = query.shape
        kv_heads, kv_len = key.shape[1:3]
        cells = (batch, heads, q_len, kv_len)
        lowered, bias, slopes = call.lower(), call.tensor_bias, call.slopes
        ranges = None if lowered.ranges is None else lowered.ranges.contiguous()
        softcap, start = call.softcap, call.query_start
        if isinstance(start, Tensor) and start.device.type == "cpu" and len(start) == 1:
            start = int(start)  # passed as an argument, because copying it would wait for the GPU
        return cls(
            ranges,
            0 if ranges is None or ranges.shape[2] == 1 else q_len,
            0 if ranges is None else ranges.shape[2] * q_len,
            None if lowered.dense is None else StridedTensor.from_tensor(lowered.dense.view(torch.uint8), cells),
            None if bias is None else StridedTensor.from_tensor(bias, cells),
            None if slopes is None else slopes.contiguous(),
            None if call.sinks is None else call.sinks.contiguous(),
            0 if isinstance(start, Tensor) else start,
            start.to(query.device).contiguous() if isinstance(start, Tensor) else None,
            1 if isinstance(start, Tensor) and len(start) > 1 else 0,
            call.scale * LOG2_E.value if softcap is None else call.scale / softcap,
            None if softcap is None else softcap * LOG2_E.value,
            batch,
            heads,
            heads // kv_heads,
            q_len,
            prepared_rows(q_len),
            kv_len,
        )


def prepared_rows(q_len: int) -> int:
    """Room for all rows of every block of queries and one more, so that what is prepared of rows is read without a
    mask.
    """
    return (q_len // PREPARED_ROWS_MULTIPLE + 1) * PREPARED_ROWS_MULTIPLE


def prepare_lse(logit_params: LogitParams, lse: Tensor) -> Tensor:
    """`[batch, heads, length]`: what is to be taken off the scores of each row, for `load_row_values`."""
    prepared = lse.new_empty((*lse.shape[:2], logit_params.length))
    _prepare_lse[(lse.shape[0] * lse.shape[1], logit_params.length // PREPARED_ROWS_MULTIPLE)](
        logit_params, lse.contiguous(), prepared, PREPARED_ROWS_MULTIPLE
    )
    return prepared


def row_reader(tensor: Tensor, block: int) -> TensorDescriptor | StridedTensor:
    """How a kernel reads blocks of rows, for `load_rows`."""
    *steps, last = tensor.stride()
    size = tensor.element_size()
    # an axis of one element has any stride
    steps = [
        step if length > 1 else TMA_ALIGNMENT_BYTES // size for step, length in zip(steps, tensor.shape, strict=False)
    ]
    if (
        0 in tensor.shape
        or last != 1
        or tensor.data_ptr() % TMA_ALIGNMENT_BYTES
        or any(step <= 0 or step * size % TMA_ALIGNMENT_BYTES for step in steps)
    ):
        return StridedTensor.from_tensor(tensor)
    return TensorDescriptor(tensor, list(tensor.shape), [*steps, 1], [1, 1, block, padded_width(tensor.shape[3])])


@triton.jit
def tile_pointers(matrix, batch, head, rows, columns):
    """Pointers to a tile, given rows and columns that broadcast; 64-bit, for tensors of more than 2³¹ elements."""
    start = matrix.pointer + batch * matrix.batch + head * matrix.head
    return start + rows.to(tl.int64) * matrix.row + columns.to(tl.int64) * matrix.column


@triton.jit
def load_rows(matrix, batch, head, start, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """`[BLOCK, WIDTH]`: rows from `start` on, 0 beyond the last row and the last column."""
    if isinstance(matrix, tl.core.tensor_descriptor_base):
        return matrix.load([batch.to(tl.int32), head.to(tl.int32), start, 0]).reshape(BLOCK, WIDTH)
    else:
        return gather_rows(matrix, batch, head, start + tl.arange(0, BLOCK), WIDTH)


@triton.jit
def gather_rows(matrix, batch, head, rows, WIDTH: tl.constexpr):
    """The same for any rows; `head` may differ from row to row."""
    columns = tl.arange(0, WIDTH)
    inside = (rows < matrix.rows)[:, None] & (columns < matrix.columns)[None, :]
    return tl.load(tile_pointers(matrix, batch, head, rows[:, None], columns[None, :]), inside, other=0.0)


@triton.jit
def store_rows(matrix, batch, head, rows, values):
    """Rows where they belong, in the matrix's own dtype."""
    columns = tl.arange(0, values.shape[1])
    inside = (rows < matrix.rows)[:, None] & (columns < matrix.columns)[None, :]
    values = values.to(matrix.pointer.dtype.element_ty)
    tl.store(tile_pointers(matrix, batch, head, rows[:, None], columns[None, :]), values, inside)


@triton.jit
def dot(left, right, added, PRECISION: tl.constexpr):
    """left · right + added, in float32."""
    if PRECISION == "upcast":  # the interpreter does not know bfloat16 products; in float32 they are the same
        return tl.dot(left.to(tl.float32), right.to(tl.float32), added, input_precision="ieee")
    return tl.dot(left, right, added, input_precision=PRECISION)


@triton.jit
def dot_transposed(left, right, PRECISION: tl.constexpr):
    """left · rightᵀ, in float32."""
    return dot(left, tl.trans(right), tl.zeros([left.shape[0], right.shape[0]], dtype=tl.float32), PRECISION)


@triton.jit
def tanh(x):
    """Exact to the last digits near 0 too, where 1 − e^(−2x) would lose them."""
    square = x * x
    small = x * (1 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * (62 / 2835)))))
    falling = tl.exp2(tl.abs(x) * (-2 * LOG2_E))
    large = (1 - falling) / (1 + falling)
    return tl.where(tl.abs(x) < 0.2, small, tl.where(x < 0, -large, large))


@triton.jit
def deferred_scale(logit_params):
    """Factor still to be applied to `finish_logits`: the scale if it is folded into `exp2`, else 1."""
    if (
        logit_params.softcap is None
        and logit_params.bias is None
        and logit_params.slopes is None
        and logit_params.sinks is None
    ):
        return logit_params.scale
    else:
        return 1.0


@triton.jit
def finish_logits(products, logit_params, batch, head, rows, keys, first, last, MASKED: tl.constexpr):
    """log2(e) · (softcap(scale · Q Kᵀ) + bias) over `deferred_scale`, −inf where a key is forbidden or none.

    `rows` and `keys` broadcast to the shape of the tile, either way round; `first` and `last` are the ends of each
    row's range of keys.
    """
    result = products
    if logit_params.softcap is not None:
        result = logit_params.softcap * tanh(result * logit_params.scale)
    elif logit_params.bias is not None or logit_params.slopes is not None or logit_params.sinks is not None:
        result = result * logit_params.scale
    inside = (rows < logit_params.q_len) & (keys < logit_params.kv_len)
    if logit_params.bias is not None:
        added = tl.load(tile_pointers(logit_params.bias, batch, head, rows, keys), inside, other=0.0).to(tl.float32)
        # the lowest number a dtype holds, times log2(e), must not become −∞, which alone forbids a key
        result += tl.where(added > -float("inf"), tl.maximum(added, MIN_BIAS), added) * LOG2_E
    if logit_params.slopes is not None:
        result -= (
            tl.load(logit_params.slopes + head).to(tl.float32)
            * LOG2_E
            * distance(query_offset(logit_params, batch), rows, keys)
        )
    if MASKED:
        allowed = (keys >= first) & (keys < last)
        if logit_params.dense is not None:
            allowed &= tl.load(tile_pointers(logit_params.dense, batch, head, rows, keys), inside, other=0) != 0
        result = tl.where(allowed, result, -float("inf"))
    return result


@triton.jit
def query_offset(logit_params, batch):
    """Where the first query stands among the keys."""
    if logit_params.starts is None:
        return logit_params.start
    else:
        return tl.load(logit_params.starts + batch * logit_params.start_stride)


@triton.jit
def distance(origin, rows, keys):
    """|position of query − key|; made float before they broadcast: a conversion for each row and key, not each cell."""
    return tl.abs((origin + rows).to(tl.float32) - keys.to(tl.float32))


@triton.jit
def load_row_values(shift, logit_params, batch, head, rows):
    """What `prepare_lse` prepared for each row; one beyond the last may be among them."""
    return tl.load(shift + (batch * logit_params.heads + head) * logit_params.length + rows)


@triton.jit
def load_lse(logit_params, lse, row_block, rows):
    """Log-sum-exp in base 2. A row without a key has −∞ and scores −∞: 0 in its place, for subtracting would give nan.

    Beyond the last row a number so large that weights are 0, and finite, so that their products with logarithms are 0.
    """
    shift = tl.load(lse + row_block * logit_params.q_len + rows, rows < logit_params.q_len, other=1e30) * LOG2_E
    return tl.where(shift == -float("inf"), 0.0, shift)


@triton.jit
def _prepare_lse(logit_params, lse, prepared, ROWS: tl.constexpr):
    row_block = tl.program_id(0).to(tl.int64)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    tl.store(prepared + row_block * logit_params.length + rows, load_lse(logit_params, lse, row_block, rows))
