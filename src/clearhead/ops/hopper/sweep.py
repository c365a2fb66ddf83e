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
from clearhead.ops.statistics import PoolSpec
from clearhead.ops.triton.block_ranges import transpose_block_ranges
from clearhead.ops.triton.config import TileConfig, block_count
from clearhead.ops.triton.logits import LogitParams, restored

WARP_GROUPS, STAGES = 3, 4
TILE = TileConfig(queries=64, keys=128, warps=4 * (WARP_GROUPS + 1), stages=STAGES)  # for each warp group
MIN_CELLS = 2**28  # for smaller matrices, the kernels take about the same time (benchmarks/sweep_sizes.py)
STARTUP_TILES = 2.5  # estimate of the time in which a thread block loads its keys, in query tiles
WARP_SIZE = 32
MIN_TILES = 16  # query tiles of a thread block
WAVES = 4  # thread blocks for each processor, if they differ in work


class Problem(ctypes.Structure):
    """Arguments of the kernel; the fields are those of `Problem` in sweep.cu."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("shift", "columns", "row_sums", "bins", "ranges", "seen", "starts")),
        ("scale", ctypes.c_float),
        *(
            (name, ctypes.c_int)
            for name in (
                "heads", "group", "batches", "q_len", "kv_len", "padded_rows", "range_count", "range_batches", "start",
                "start_stride", "chunks", "bin_height_bits", "bin_width_bits", "bin_rows", "bin_columns",
            )
        ),
    ]  # fmt: skip


def unsupported_reasons(call: AttentionCall) -> list[str]:
    """Return why the kernel cannot take a call; empty if it can."""
    return support.unsupported_reasons(call, MIN_CELLS)


def sweep(
    call: AttentionCall,
    shift: Tensor,
    columns: Tensor,
    row_sums: Tensor,
    requested: tuple[bool, bool],
    cells: Tensor | None,
    spec: PoolSpec | None,
) -> None:
    """Add the column sums, row sums and bins of a call to tensors, or raise a DriverError and leave them as they are.

    Args:
        call: attention call for which there are no `unsupported_reasons`.
        shift: log-sum-exp from `prepare_lse`.
        columns: column sums, `[batch, heads, kv_len]`.
        row_sums: entropy and distance, as requested, `[batch, heads, prepared rows, 0 to 2]`.
        requested: whether entropy and distance are requested.
        cells: bins of a heatmap, `[batch, heads, rows, cols]`, or None.
        spec: size of the heatmap; its bins are powers of 2 and have at least 16 rows and keys.
    """
    batch, heads, q_len, kv_len = call.shape
    logit_params = LogitParams.from_call(call)
    ranges = logit_params.ranges
    seen = transpose_block_ranges(call, logit_params, TILE)  # a reference keeps its memory until the launch
    rows, cols = (1, 1) if spec is None else (spec.rows, spec.cols)
    blocks = block_count(kv_len, WARP_GROUPS * TILE.keys) * heads * batch
    chunks = _chunks(blocks, block_count(q_len, TILE.queries), ranges is not None, call.query.device)
    problem = Problem(
        shift.data_ptr(),
        columns.data_ptr(),
        row_sums.data_ptr(),
        data_pointer(cells),
        data_pointer(ranges),
        data_pointer(seen),
        data_pointer(logit_params.starts),
        logit_params.scale,
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
        (q_len // rows).bit_length() - 1,
        (kv_len // cols).bit_length() - 1,
        rows,
        cols,
    )
    options = (
        ("DTYPE", support.DTYPES[call.query.dtype]),
        ("HEAD_DIM", call.query.shape[3]),
        ("WARP_GROUPS", WARP_GROUPS),
        ("STAGES", STAGES),
        ("ENTROPY", int(requested[0])),
        ("DISTANCE", int(requested[1])),
        ("BINS", 0 if spec is None else max(1, TILE.keys * cols // kv_len)),
        ("TALL_BINS", int(spec is not None and q_len // rows > TILE.queries)),
        ("POOL_MAX", int(spec is not None and spec.reduce == "max")),
    )
    row_bytes = 2 * call.query.shape[3]
    shared_bytes = (WARP_GROUPS * TILE.keys + STAGES * TILE.queries) * row_bytes + 16 * STAGES + 8  # and barriers
    maps = row_map(call.query, TILE.queries), row_map(call.key, TILE.keys)
    compiled_kernel("sweep", options).launch(blocks * chunks, WARP_SIZE * TILE.warps, shared_bytes, (*maps, problem))


def _chunks(blocks: int, tiles: int, masked: bool, device: torch.device) -> int:
    """Return into how many parts to divide the query tiles of each block of keys.

    One thread block runs on a processor at a time. If all take equally long, the number is chosen so that the last
    ones fill the GPU; under a mask, so that there are enough of them.
    """
    processors = support.processor_count(device)
    most = max(1, tiles // MIN_TILES)
    if masked:
        return min(most, block_count(WAVES * processors, blocks))
    return min(
        range(1, most + 1),
        key=lambda chunks: block_count(blocks * chunks, processors) * (tiles / chunks + STARTUP_TILES),
    )
