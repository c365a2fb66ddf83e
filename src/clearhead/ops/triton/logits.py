"""Logits of one tile in Triton, in base 2, shared by all kernels.

Kernels take named tuples of pointers and strides. An absent option is None, and its code is not compiled. Rows of
queries, keys and values in half precision are loaded by the copy engine (TMA) of Hopper and Blackwell GPUs if alignment
and strides allow it. Lengths are passed through `unspecialized`, so that one compiled kernel serves all of them.
"""

# pyright: reportArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from clearhead.ops.call import AttentionCall
from clearhead.ops.gpu import GPU, gpu_of
from clearhead.ops.triton.config import padded_width

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
MIN_BIAS = tl.constexpr(-1e38)
BEYOND_LAST_ROW = tl.constexpr(1e30)  # log-sum-exp beyond the last row: weights are 0, and their logarithms finite
PREPARED_ROWS_MULTIPLE = tl.constexpr(128)  # no query block has more rows
TMA_ALIGNMENT_BYTES = 16  # of addresses and strides, required by the copy engine


def unspecialized(value: int) -> int:
    """Encode an integer that changes from call to call; kernels decode it with `decoded`.

    Triton compiles a kernel again for integers that are 1, and for multiples of 16. The result is neither. Top-level
    arguments have `do_not_specialize` for this, but fields of a tuple do not.
    """
    return 4 * value + 3


def restored(value: int) -> int:
    """Return an integer that `unspecialized` has encoded, outside of a kernel."""
    return value >> 2


class StridedTensor(NamedTuple):
    """Pointer to a tensor, the strides of its four axes (0 if it broadcasts), and the lengths of the last two."""

    pointer: Any
    batch: Any
    head: Any
    row: Any
    column: Any
    rows: Any  # unspecialized
    columns: Any

    @classmethod
    def from_tensor(cls, tensor: Tensor, shape: tuple[int, ...] | None = None) -> StridedTensor:
        """Build from a tensor, optionally broadcast to a shape."""
        expanded = tensor if shape is None else tensor.expand(shape)
        batch, head, row, column = expanded.stride()
        rows, columns = expanded.shape[2:]
        return cls(tensor, batch, head, row, column, unspecialized(rows), columns)


class LogitParams(NamedTuple):
    """Kernel parameters of the logits, in addition to queries and keys.

    Kernels call this argument `logit_params`: a plain `params` clashes with a variable in Triton's launcher.
    """

    ranges: Any  # [ranges, 2, batch or 1, q_len], contiguous
    range_batches: Any  # size of its batch axis
    dense: Any
    bias: Any
    slopes: Any
    sinks: Any
    start: Any  # position of the first query among the keys, unspecialized
    starts: Any  # tensor of start positions, used instead of `start` unless None
    start_stride: Any
    scale: Any  # positive factor of the products; with a softcap, of the argument of tanh
    softcap: Any  # times log2 e
    batches: Any
    heads: Any
    group: Any
    q_len: Any  # unspecialized, see `query_length`
    kv_len: Any  # unspecialized, see `key_length`
    length: Any  # of tensors with prepared per-row values, see `prepared_rows`

    @classmethod
    def from_call(cls, call: AttentionCall) -> LogitParams:
        query, key = call.query, call.key
        batch, heads, q_len, _ = query.shape
        kv_heads, kv_len = key.shape[1:3]
        cells = (batch, heads, q_len, kv_len)
        lowered, bias, slopes = call.lower(), call.tensor_bias, call.slopes
        ranges = None if lowered.ranges is None else lowered.ranges.contiguous()
        softcap, start, starts, start_stride = call.softcap, call.query_start, None, 0
        if isinstance(start, Tensor):
            if start.device.type == "cpu" and len(start) == 1:
                start = int(start)  # passed as a number, because copying it would synchronize with the GPU
            else:
                start, starts, start_stride = 0, start.to(query.device).contiguous(), 1 if len(start) > 1 else 0
        return cls(
            ranges,
            None if ranges is None else ranges.shape[2],
            None if lowered.dense is None else StridedTensor.from_tensor(lowered.dense.view(torch.uint8), cells),
            None if bias is None else StridedTensor.from_tensor(bias, cells),
            None if slopes is None else slopes.contiguous(),
            None if call.sinks is None else call.sinks.contiguous(),
            unspecialized(start),
            starts,
            start_stride,
            call.scale * LOG2_E.value if softcap is None else call.scale / softcap,
            None if softcap is None else softcap * LOG2_E.value,
            batch,
            heads,
            heads // kv_heads,
            unspecialized(q_len),
            unspecialized(kv_len),
            prepared_rows(q_len),
        )


def prepared_rows(q_len: int) -> int:
    """Return the length of tensors with per-row values: enough to load any query block, and one more row, unmasked."""
    return (q_len // PREPARED_ROWS_MULTIPLE.value + 1) * PREPARED_ROWS_MULTIPLE.value


def prepare_lse(lse: Tensor) -> Tensor:
    """Return log-sum-exp in base 2, `[batch, heads, length]`, for `load_row_values`.

    The values are those of `load_lse`. A few small torch kernels take less time to launch than one Triton kernel, and
    none to compile.
    """
    q_len = lse.shape[2]
    prepared = lse.new_full((*lse.shape[:2], prepared_rows(q_len)), BEYOND_LAST_ROW.value)
    torch.mul(lse, LOG2_E.value, out=prepared[..., :q_len])
    return prepared.nan_to_num_(nan=torch.nan, posinf=torch.inf, neginf=0.0)


class RowDescriptor(TensorDescriptor):
    """TMA descriptor of a tensor that `row_reader` has checked; checking it again would take longer than the rest."""

    def __post_init__(self) -> None:
        pass


def row_reader(tensor: Tensor, block: int) -> TensorDescriptor | StridedTensor:
    """Return the argument from which `load_rows` loads blocks of rows: a TMA descriptor if that is faster."""
    return row_reader_of(tensor, block)(tensor)


def row_reader_of(tensor: Tensor, block: int) -> Callable[[Tensor], TensorDescriptor | StridedTensor]:
    """Return `row_reader` for all tensors with the shape, strides, dtype and alignment of this one."""
    fields = _descriptor_fields(tensor.shape, tensor.stride(), tensor.dtype, gpu_of(tensor.device), block)
    if fields is None or tensor.data_ptr() % TMA_ALIGNMENT_BYTES:
        return pointer_reader(tensor)
    shape, strides, block_shape = fields
    return lambda same: RowDescriptor(same, shape, strides, block_shape)


def pointer_reader(tensor: Tensor) -> Callable[[Tensor], StridedTensor]:
    """Return `StridedTensor.from_tensor` for all tensors with the shape and strides of this one."""
    _, *strides_and_lengths = StridedTensor.from_tensor(tensor)
    return lambda same: StridedTensor(same, *strides_and_lengths)


@lru_cache(maxsize=1024)
def _descriptor_fields(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, gpu: GPU, block: int
) -> tuple[list[int], list[int], list[int]] | None:
    """Return shape, strides and block shape of a TMA descriptor; None if pointers are faster, or the only way."""
    if dtype.itemsize != 2 or not gpu.has_wgmma or 0 in shape:
        return None
    unit = TMA_ALIGNMENT_BYTES // dtype.itemsize
    # the stride of an axis of one element is arbitrary
    steps = [step if length > 1 else unit for step, length in zip(strides[:3], shape, strict=False)]
    if strides[3] != 1 or min(steps) <= 0 or any(step % unit for step in steps):
        return None
    return list(shape), [*steps, 1], [1, 1, block, padded_width(shape[3])]


@triton.jit
def decoded(value):
    """Return an integer that `unspecialized` has encoded."""
    return value >> 2


@triton.jit
def query_length(logit_params):
    """Return the number of queries."""
    return decoded(logit_params.q_len)


@triton.jit
def key_length(logit_params):
    """Return the number of keys."""
    return decoded(logit_params.kv_len)


@triton.jit
def row_indices(logit_params, batch, head, rows):
    """Return the indices of rows in a contiguous tensor `[batch, heads, q_len]`."""
    return (batch * logit_params.heads + head) * query_length(logit_params) + rows


@triton.jit
def tile_pointers(matrix, batch, head, rows, columns):
    """Return pointers to a tile. `rows` and `columns` broadcast; int64 supports tensors of more than 2³¹ elements."""
    start = matrix.pointer + batch * matrix.batch + head * matrix.head
    return start + rows.to(tl.int64) * matrix.row + columns.to(tl.int64) * matrix.column


@triton.jit
def load_rows(matrix, batch, head, start, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Load rows from `start` on, `[BLOCK, WIDTH]`, with 0 beyond the last row and the last column."""
    if isinstance(matrix, tl.core.tensor_descriptor_base):
        return matrix.load([batch.to(tl.int32), head.to(tl.int32), start, 0]).reshape(BLOCK, WIDTH)
    else:
        return gather_rows(matrix, batch, head, start + tl.arange(0, BLOCK), WIDTH)


@triton.jit
def gather_rows(matrix, batch, head, rows, WIDTH: tl.constexpr):
    """Load any rows, with 0 beyond the last row and the last column; `head` may differ from row to row."""
    columns = tl.arange(0, WIDTH)
    inside = (rows < decoded(matrix.rows))[:, None] & (columns < matrix.columns)[None, :]
    return tl.load(tile_pointers(matrix, batch, head, rows[:, None], columns[None, :]), inside, other=0.0)


@triton.jit
def store_rows(matrix, batch, head, rows, values):
    """Store rows in the dtype of the matrix."""
    columns = tl.arange(0, values.shape[1])
    inside = (rows < decoded(matrix.rows))[:, None] & (columns < matrix.columns)[None, :]
    values = values.to(matrix.pointer.dtype.element_ty)
    tl.store(tile_pointers(matrix, batch, head, rows[:, None], columns[None, :]), values, inside)


@triton.jit
def dot(left, right, added, PRECISION: tl.constexpr):
    """Return left · right + added, in float32."""
    if PRECISION == "upcast":  # the interpreter does not support bfloat16 products; in float32 they are the same
        return tl.dot(left.to(tl.float32), right.to(tl.float32), added, input_precision="ieee")
    return tl.dot(left, right, added, input_precision=PRECISION)


@triton.jit
def dot_transposed(left, right, PRECISION: tl.constexpr):
    """Return left · rightᵀ, in float32."""
    return dot(left, tl.trans(right), tl.zeros([left.shape[0], right.shape[0]], dtype=tl.float32), PRECISION)


@triton.jit
def tanh(x):
    """Return the hyperbolic tangent, as a series near 0, where 1 − e^(−2x) would cancel."""
    square = x * x
    small = x * (1 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * (62 / 2835)))))
    falling = tl.exp2(tl.abs(x) * (-2 * LOG2_E))
    large = (1 - falling) / (1 + falling)
    return tl.where(tl.abs(x) < 0.2, small, tl.where(x < 0, -large, large))


@triton.jit
def deferred_scale(logit_params):
    """Return the factor still to be applied to `finish_logits`: the scale if it is folded into `exp2`, else 1."""
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
    """Return log2(e) · (softcap(scale · Q Kᵀ) + bias) / `deferred_scale`; −inf if a key is masked or absent.

    `rows` and `keys` broadcast to the shape of the tile, in either orientation. `first` and `last` are the start and
    end of each row's range of keys.
    """
    result = products
    if logit_params.softcap is not None:
        result = logit_params.softcap * tanh(result * logit_params.scale)
    elif logit_params.bias is not None or logit_params.slopes is not None or logit_params.sinks is not None:
        result = result * logit_params.scale
    inside = (rows < query_length(logit_params)) & (keys < key_length(logit_params))
    if logit_params.bias is not None:
        added = tl.load(tile_pointers(logit_params.bias, batch, head, rows, keys), inside, other=0.0).to(tl.float32)
        # only -inf forbids a key: the lowest finite number of a dtype must not overflow to -inf times log2(e)
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
    """Return the position of the first query among the keys."""
    if logit_params.starts is None:
        return decoded(logit_params.start)
    else:
        return tl.load(logit_params.starts + batch * logit_params.start_stride)


@triton.jit
def distance(origin, rows, keys):
    """Return |position of query − key|, converted to float before broadcasting: once per row and key, not per cell."""
    return tl.abs((origin + rows).to(tl.float32) - keys.to(tl.float32))


@triton.jit
def load_row_values(shift, logit_params, batch, head, rows):
    """Load a prepared value for each row, such as from `prepare_lse`; rows beyond the last have one too."""
    return tl.load(shift + (batch * logit_params.heads + head) * logit_params.length + rows)


@triton.jit
def load_lse(logit_params, lse, batch, head, rows):
    """Load log-sum-exp in base 2, with replacements that keep weights finite.

    In a row without a key, log-sum-exp and scores are −∞, and their difference would be nan; 0 replaces log-sum-exp.
    Beyond the last row it is so large that weights are 0, but finite, so that weight · logarithm is 0.
    """
    pointers = lse + row_indices(logit_params, batch, head, rows)
    shift = tl.load(pointers, rows < query_length(logit_params), other=BEYOND_LAST_ROW) * LOG2_E
    return tl.where(shift == -float("inf"), 0.0, shift)
