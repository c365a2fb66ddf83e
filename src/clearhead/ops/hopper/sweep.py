"""Statistics of the attention matrix on Hopper GPUs, by the kernel in `sweep.cu`.

It computes column sums, and with them row sums and a heatmap, for calls without bias, softcap and dense mask. The
kernels in Triton compute everything else.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from clearhead.ops.call import AttentionCall
from clearhead.ops.hopper import support
from clearhead.ops.hopper.driver import compiled_kernel, data_pointer, row_map
from clearhead.ops.statistics import AttentionStatistics, StatisticsRequest
from clearhead.ops.triton.block_ranges import transpose_block_ranges
from clearhead.ops.triton.config import TileConfig, block_count
from clearhead.ops.triton.logits import LogitParams, prepare_lse, restored

WARP_GROUPS, STAGES = 3, 4
TILE = TileConfig(queries=64, keys=128, warps=4 * (WARP_GROUPS + 1), stages=STAGES)  # for each warp group
MIN_CELLS = 2**28  # smaller matrices take less than 1 ms in Triton, too, and NVRTC compiles in every process
STARTUP_TILES = 1.0  # estimate of the time in which a thread block loads the keys of an item, in query tiles
WARP_SIZE = 32
MIN_TILES = 16  # query tiles of an item
WAVES = 4  # items for each processor, if they differ in work
MASKED_HEADS = 16  # at least as many heads in flight, if items differ in work: the last ones to start must be short


class Problem(ctypes.Structure):
    """Arguments of the kernel; the fields are those of `Problem` in sweep.cu."""

    _fields_ = [
        *(
            (name, ctypes.c_void_p)
            for name in ("shift", "columns", "row_sums", "bins", "ranges", "seen", "starts", "next_item")
        ),
        ("scale", ctypes.c_float),
        ("bin_factor", ctypes.c_float),
        *(
            (name, ctypes.c_int)
            for name in (
                "heads", "group", "batches", "q_len", "kv_len", "padded_rows", "range_count", "range_batches", "start",
                "start_stride", "chunks", "bundle", "bin_height_bits", "bin_width_bits", "bin_rows", "bin_columns",
            )
        ),
    ]  # fmt: skip


def unsupported_reasons(call: AttentionCall) -> list[str]:
    """Return why the kernel cannot take a call; empty if it can."""
    return support.unsupported_reasons(call, MIN_CELLS)


def sweep(call: AttentionCall, lse: Tensor, request: StatisticsRequest) -> AttentionStatistics:
    """Return column sums and, as requested, entropy, distance and a heatmap, or raise a DriverError.

    Args:
        call: attention call for which there are no `unsupported_reasons`.
        lse: its log-sum-exp, `[batch, heads, q_len]`.
        request: statistics; bins of its heatmap are powers of 2 and have at least 16 rows and keys.
    """
    batch, heads, q_len, kv_len = call.shape
    shift, spec = prepare_lse(lse), request.pool
    row_sums = lse.new_zeros((request.entropy + request.distance, batch, heads, q_len))
    zeros = lse.new_zeros(batch * heads * kv_len + 1)
    # one tensor, so that one kernel fills both with 0, which has the same bits as a float and as an int
    columns, next_item = zeros[:-1].view(batch, heads, kv_len), zeros[-1:]
    cells = None if spec is None else lse.new_zeros((batch, heads, spec.rows, spec.cols))
    logit_params = LogitParams.from_call(call)
    ranges = logit_params.ranges
    seen = transpose_block_ranges(call, logit_params, TILE)  # a reference keeps its memory until the launch
    rows, cols = (1, 1) if spec is None else (spec.rows, spec.cols)
    row_bytes = 2 * call.query.shape[3]
    least = 1 if ranges is None else MASKED_HEADS
    heads_in_flight = support.heads_in_flight(q_len * row_bytes, heads * batch, least)
    blocks = block_count(kv_len, WARP_GROUPS * TILE.keys) * heads * batch
    chunks = _chunks(blocks, block_count(q_len, TILE.queries), ranges is not None, call.query.device)
    thread_blocks = min(blocks * chunks, support.processor_count(call.query.device))
    problem = Problem(
        shift.data_ptr(),
        columns.data_ptr(),
        row_sums.data_ptr(),
        data_pointer(cells),
        data_pointer(ranges),
        data_pointer(seen),
        data_pointer(logit_params.starts),
        next_item.data_ptr(),
        logit_params.scale,
        1.0 if spec is None or spec.reduce == "max" else rows * cols / (q_len * kv_len),
        heads,
        logit_params.group,
        batch,
        q_len,
        kv_len,
        logit_params.length,
        0 if ranges is None else ranges.shape[0],
        logit_params.range_batches or 1,
        restored(logit_params.start),
        logit_params.start_stride,
        chunks,
        heads_in_flight,
        (q_len // rows).bit_length() - 1,
        (kv_len // cols).bit_length() - 1,
        rows,
        cols,
    )
    shared_bytes = (WARP_GROUPS * TILE.keys + STAGES * TILE.queries) * row_bytes + 16 * (STAGES + 1)  # and barriers
    maps = row_map(call.query, TILE.queries), row_map(call.key, TILE.keys)
    kernel = compiled_kernel("sweep", _options(call, request))
    kernel.launch(thread_blocks, WARP_SIZE * TILE.warps, shared_bytes, (*maps, problem))
    entropy, distance = row_sums[0] if request.entropy else None, row_sums[-1] if request.distance else None
    return AttentionStatistics(entropy=entropy, received=columns, distance=distance, pooled=cells)


def _options(call: AttentionCall, request: StatisticsRequest) -> tuple[tuple[str, int | str], ...]:
    """Return the compile-time options of the kernel."""
    _, _, q_len, kv_len = call.shape
    spec = request.pool
    return (
        ("DTYPE", support.DTYPES[call.query.dtype]),
        ("HEAD_DIM", call.query.shape[3]),
        ("WARP_GROUPS", WARP_GROUPS),
        ("STAGES", STAGES),
        ("ENTROPY", int(request.entropy)),
        ("DISTANCE", int(request.distance)),
        ("BINS", 0 if spec is None else max(1, TILE.keys * spec.cols // kv_len)),
        ("TALL_BINS", int(spec is not None and q_len // spec.rows > TILE.queries)),
        ("POOL_MAX", int(spec is not None and spec.reduce == "max")),
    )


def _chunks(blocks: int, tiles: int, masked: bool, device: torch.device) -> int:
    """Return into how many parts to divide the query tiles of each block of keys.

    A thread block on each processor takes one part after another. If all take equally long, the number is chosen so
    that the last ones fill the GPU; under a mask, so that there are enough of them.
    """
    processors = support.processor_count(device)
    most = max(1, tiles // MIN_TILES)
    if masked:
        return min(most, block_count(WAVES * processors, blocks))
    return min(
        range(1, most + 1),
        key=lambda chunks: block_count(blocks * chunks, processors) * (tiles / chunks + STARTUP_TILES),
    )
