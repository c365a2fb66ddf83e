"""Functions of tiles.cpp, compiled when they are first needed."""

from __future__ import annotations

import ctypes
import functools
import warnings
from pathlib import Path

import torch
from torch import Tensor

from clearhead._utils.torch_internals import in_dispatch_mode, is_jit_tracing
from clearhead.ops.native.library import find_compiler, load_library
from clearhead.ops.tiled.schedule import FoldedShape, QueryBlock

SOURCE = Path(__file__).with_name("tiles.cpp")
MIN_CELLS = 2**18  # compiling for a second, once on each machine, would not pay for fewer


class SumCall(ctypes.Structure):
    """Arguments of `add_tile`, in the order of its struct."""

    _fields_ = [
        *(
            (name, ctypes.c_void_p)
            for name in ("logs", "weights", "entropies", "distances", "columns", "scratch", "positions")
        ),
        *(
            (name, ctypes.c_int64)
            for name in ("heads", "rows", "keys", "first_key", "row_stride", "column_stride", "threads")
        ),
    ]


class TopCall(ctypes.Structure):
    """Arguments of `add_top`, in the order of its struct."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("logs", "values", "keys_of")),
        *((name, ctypes.c_int64) for name in ("heads", "rows", "keys", "first_key", "row_stride", "top", "threads")),
    ]


def unsupported_reasons(like: Tensor, cells: int) -> list[str]:
    """Return why the functions cannot take some cells, or why torch is fast enough for them; empty if they can.

    Args:
        like: tensor with the device and the dtype of the log weights.
        cells: number of log weights.
    """
    if torch.compiler.is_compiling() or in_dispatch_mode() or is_jit_tracing():
        return ["the call is traced"]
    if like.device.type != "cpu":
        return [f"device {like.device.type} is not cpu"]
    if like.dtype != torch.float32:
        return [f"dtype {like.dtype} is not float32"]
    if cells < MIN_CELLS:
        return [f"{cells} cells are fewer than {MIN_CELLS}"]
    return unavailable_reasons()


def unavailable_reasons() -> list[str]:
    """Return why this machine cannot run the functions; empty if it can. Compile them at the first call."""
    functions = _load()
    return [str(functions)] if isinstance(functions, OSError) else []


def native_functions() -> ctypes.CDLL:
    """Return the compiled functions, if there are no `unavailable_reasons`."""
    functions = _load()
    if isinstance(functions, OSError):
        raise functions
    return functions


@functools.cache
def _load() -> ctypes.CDLL | OSError:
    try:
        find_compiler()
    except OSError as error:  # not worth a warning: many machines have no compiler
        return error
    try:
        return declared(load_library(SOURCE))
    except OSError as error:
        warnings.warn(f"attention on the CPU runs in torch, because C++ functions failed: {error}", stacklevel=2)
        return error


def declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the types of the functions of a library."""
    library.add_tile.argtypes, library.add_tile.restype = [ctypes.POINTER(SumCall)], None
    library.add_top.argtypes, library.add_top.restype = [ctypes.POINTER(TopCall)], None
    library.scratch_size.argtypes, library.scratch_size.restype = [ctypes.c_int64] * 3, ctypes.c_int64
    library.exponentials.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    library.exponentials.restype = None
    return library


def first_head(shape: FoldedShape, block: QueryBlock) -> int:
    """Return the index of the first of the block's heads, counted over all sequences.

    The others follow it, because a block has several key heads only with all query heads that read them.
    """
    _, kv_heads, group, _, _ = shape
    return (block.batch.start * kv_heads + block.kv_heads.start) * group + block.group.start


def address(tensor: Tensor | None, index: int) -> int | None:
    """Return the address of an element of a contiguous tensor."""
    return None if tensor is None else tensor.data_ptr() + index * tensor.element_size()
