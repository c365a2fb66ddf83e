"""Repeated launches of compiled kernels.

Triton binds and inspects every argument at each launch, to find the compiled kernel for it. This takes longer than a
short kernel runs. Calls with the same layout need the same kernel, so a later launch looks it up by the layout.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, NamedTuple

from torch import Tensor

from clearhead.ops.call import AttentionCall
from clearhead.ops.triton.config import TileConfig, is_interpreted, matmul_precision
from clearhead.ops.triton.logits import pointer_reader, row_reader_of
from clearhead.ops.triton.tiles import Kernel, launch_with_tile

POINTER_ALIGNMENT_BYTES = 16  # Triton compiles separate kernels for pointers that have it
LARGE_START = 2**28  # from here on, Triton passes an encoded integer with 64 bits
MAX_LAUNCHES = 4096  # kept; a process that exceeds this starts again with none


class Launch(NamedTuple):
    """Everything that later launches of a layout reuse."""

    tile: TileConfig
    readers: list[Callable[[Tensor], Any]]  # of the matrices
    compiled: Any
    constants: tuple


_LAUNCHES: dict[Hashable, Launch] = {}
_GRID_LAUNCHES: dict[Hashable, tuple[Any, tuple]] = {}  # compiled kernels and their constants
Side = Literal["queries", "keys"]


def matrix_readers(matrices: Sequence[Tensor], rows: Sequence[Side], tile: TileConfig) -> list[Callable[[Tensor], Any]]:
    """Return functions that convert matrices, or others of the same layouts, to kernel arguments."""
    blocks = (tile.queries if side == "queries" else tile.keys for side in rows)
    by_rows = [row_reader_of(matrix, block) for matrix, block in zip(matrices, blocks, strict=False)]
    return by_rows + [pointer_reader(matrix) for matrix in matrices[len(rows) :]]


def layout_of(tensor: Tensor | None) -> Hashable:
    """Return everything that a compiled kernel depends on in a tensor."""
    if tensor is None:
        return None
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.data_ptr() % POINTER_ALIGNMENT_BYTES


def layout_of_call(call: AttentionCall, *others: Tensor | None) -> tuple[Hashable, ...]:
    """Return everything that a compiled kernel and its tile depend on in a call, and in other tensors."""
    lowered, start = call.lower(), call.query_start
    tensors = (
        call.query, call.key, call.value, lowered.ranges, lowered.dense, call.tensor_bias, call.slopes, call.sinks,
        call.seed, *others,
    )  # fmt: skip
    return (
        call.query.device,
        (layout_of(start), start.device) if isinstance(start, Tensor) else start >= LARGE_START,
        call.softcap is None,
        matmul_precision(call.query.dtype),
        # written out, because the calls of `layout_of` would take as long as the rest
        *[
            None if t is None else (t.shape, t.stride(), t.dtype, t.data_ptr() % POINTER_ALIGNMENT_BYTES)
            for t in tensors
        ],
    )


def launch(
    name: Kernel,
    kernel: Any,
    call: AttentionCall,
    layout: Hashable,
    arguments: Callable[[TileConfig], tuple[int, tuple]],
    constants: Callable[[TileConfig], dict[str, Any]],
    *,
    matrices: Sequence[Tensor] = (),
    rows: Sequence[Side] = (),
    heatmap: bool = False,
    tile: TileConfig | None = None,
) -> None:
    """Launch a kernel with the tile that fits.

    Args:
        name: name of the kernel.
        kernel: function decorated with `triton.jit`.
        call: attention call that the kernel computes.
        layout: everything that the compiled kernel and its tile depend on: `layout_of_call`, and more if needed.
        arguments: takes the tile; returns the number of programs and the kernel's arguments, except the matrices,
            which precede them in its signature, and compile-time constants, which follow them.
        constants: takes the tile; returns the compile-time constants and launch options by name.
        matrices: first arguments of the kernel. Their shapes, strides, dtypes and alignment follow from the layout.
        rows: side of the tile by which the rows of each matrix are loaded. Further matrices are passed as pointers.
        heatmap: whether the kernel also fills the bins of a heatmap.
        tile: use this tile, and do not try a smaller one.
    """
    key = (name, layout)
    known = _LAUNCHES.get(key) if tile is None else None
    if known is not None:
        known_tile, readers, compiled, values = known
        programs, given = arguments(known_tile)
        read = [reader(matrix) for reader, matrix in zip(readers, matrices, strict=True)]
        compiled[programs, 1, 1](*read, *given, *values)
        return

    def launch_through_triton(tile: TileConfig) -> Launch:
        programs, given = arguments(tile)
        readers = matrix_readers(matrices, rows, tile)
        given = (*(reader(matrix) for reader, matrix in zip(readers, matrices, strict=True)), *given)
        by_name = constants(tile)
        compiled = kernel[(programs,)](*given, **by_name)
        return Launch(tile, readers, compiled, tuple(by_name[name] for name in kernel.arg_names[len(given) :]))

    launched = launch_with_tile(name, call, call.query.shape[2], launch_through_triton, heatmap=heatmap, tile=tile)
    if tile is None and not is_interpreted():
        if len(_LAUNCHES) >= MAX_LAUNCHES:
            _LAUNCHES.clear()
        _LAUNCHES[key] = launched


def launch_on_grid(
    kernel: Any, layout: Hashable, grid: tuple[int, int, int], arguments: Sequence[Any], constants: dict[str, Any]
) -> None:
    """Launch a kernel without a tile to choose.

    Args:
        kernel: function decorated with `triton.jit`.
        layout: everything that the compiled kernel depends on in the arguments, such as `specialization_of` tensors.
        grid: number of programs on each axis.
        arguments: arguments of the kernel, except compile-time constants, which follow them in its signature.
        constants: compile-time constants and launch options by name.
    """
    key = (kernel.__name__, layout, *constants.values())
    known = _GRID_LAUNCHES.get(key)
    if known is not None:
        compiled, values = known
        compiled[grid](*arguments, *values)
        return
    compiled = kernel[grid](*arguments, **constants)
    if not is_interpreted():
        if len(_GRID_LAUNCHES) >= MAX_LAUNCHES:
            _GRID_LAUNCHES.clear()
        _GRID_LAUNCHES[key] = compiled, tuple(constants[name] for name in kernel.arg_names[len(arguments) :])


def specialization_of(*tensors: Tensor | None) -> tuple[Hashable, ...]:
    """Return everything that a compiled kernel depends on in tensors whose shapes it takes as other arguments."""
    return tuple(
        None if t is None else (t.stride(), t.dtype, t.device, t.data_ptr() % POINTER_ALIGNMENT_BYTES) for t in tensors
    )
