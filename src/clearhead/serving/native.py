"""`NativeKernel`: attention rows on a CPU, by functions in C++ that are compiled when a server starts.

One source serves all layers, dtypes and layouts of the cache. It takes a second to compile, once on each machine.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.ops.native.library import load_library
from clearhead.serving.layers import ServedLayer
from clearhead.serving.paged import PagedCache
from clearhead.serving.statistics import StatisticsWanted

log = logging.getLogger("clearhead.serving")
SOURCE = Path(__file__).with_name("attention_rows.cpp")
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
DONE, OUT_OF_RANGE = 0, 1  # results of the C++ function
FIRST_KEY, NO_KEY = (0, 1), (0, 0)  # spans
OUTPUTS = ("lse", "entropy", "peak", "distance", "mass", "received", "weights")


class Tile(NamedTuple):
    """Consecutive queries of one request, which one thread computes. The fields are those of the C++ struct.

    Attributes:
        query: index of the first query in the batch.
        rows: number of queries.
        end: number of keys of the first query, its own included. Each later query has one more.
        request: row of the block table.
        output: index of the first row in the outputs.
        received: index in the output `received` of the column sums [heads, keys] of this tile.
        keys: number of columns of the column sums.
        spans: row of `spans`.
    """

    query: int
    rows: int
    end: int
    request: int
    output: int
    received: int = 0
    keys: int = 0
    spans: int = 0


@functools.cache
def native_kernel() -> NativeKernel | None:
    """Compile and load the functions, once per process. Return None if that fails, after a warning."""
    try:
        return NativeKernel(load_library(SOURCE))
    except OSError as error:
        log.warning("the C++ kernel was not compiled (%s); attention is computed by slower functions", error)
        return None


class NativeKernel:
    """Compiled functions that compute rows of any layer, number of requests, and layout of the cache."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._function = library.attention_rows
        self._function.argtypes, self._function.restype = [ctypes.POINTER(_Call)], ctypes.c_int
        self._options: weakref.WeakKeyDictionary[ServedLayer, _Options] = weakref.WeakKeyDictionary()

    @staticmethod
    def supports(query: Tensor, cache: PagedCache) -> bool:
        """Return whether the kernel reads queries and a cache of these devices and dtypes."""
        key = cache.key_blocks
        return query.device.type == key.device.type == "cpu" and query.dtype in DTYPES and key.dtype in DTYPES

    def run(
        self,
        layer: ServedLayer,
        query: Float[Tensor, "queries heads key_dim"],
        cache: PagedCache,
        block_table: Int[Tensor, "requests blocks"],
        tiles: Int[Tensor, "tiles fields"],
        outputs: Mapping[str, Float[Tensor, ...]],
        spans: Int[Tensor, "requests spans 2"] | None = None,
    ) -> None:
        """Compute the rows of some tiles.

        Args:
            layer: options of the layer.
            query: queries of the batch.
            cache: cache that contains the keys, those of the queries included.
            block_table: blocks of each request, contiguous.
            tiles: rows to compute, by `tile_tensor`.
            outputs: contiguous tensors by name. `lse`, `entropy`, `peak` and `distance` [rows, heads], `mass` [spans,
                rows, heads], `weights` [rows, heads, keys]. `received` [heads, keys] of each tile is added to.
            spans: spans of keys for `mass`.
        """
        heads, dims = query.shape[1:]
        if (heads, cache.kv_heads, cache.key_dim) != (layer.heads, layer.kv_heads, dims):
            raise ValueError(
                f"query has {heads} heads of {dims} dims, and the cache {cache.kv_heads} heads of {cache.key_dim};"
                f" expected {layer.heads} and {layer.kv_heads} heads of the same size"
            )
        if query.stride()[1:] != (dims, 1):
            query = query.contiguous()
        slopes, sinks = self._layer_options(layer)
        key, order = cache.key_blocks, cache.key_order
        token_stride, dim_stride = key.stride()[2:] if order is None else (0, 0)
        weights, mass = outputs.get("weights"), outputs.get("mass")
        call = _Call(
            key.data_ptr(),
            DTYPES[key.dtype],
            len(key),
            key.stride(0),
            key.stride(1),
            token_stride,
            dim_stride,
            None if order is None else order.data_ptr(),
            query.data_ptr(),
            DTYPES[query.dtype],
            len(query),
            query.stride(0),
            block_table.data_ptr(),
            *block_table.shape,
            block_table.stride(0),
            layer.kv_heads,
            layer.group,
            dims,
            cache.block_size,
            layer.window or 0,
            layer.scale,
            layer.softcap or 0.0,
            None if slopes is None else slopes.data_ptr(),
            None if sinks is None else sinks.data_ptr(),
            tiles.data_ptr(),
            len(tiles),
            None if spans is None else spans.data_ptr(),
            0 if spans is None else spans.shape[1],
            0 if weights is None else weights.shape[2],
            *(outputs[name].data_ptr() if name in outputs else None for name in OUTPUTS),
            0 if mass is None else mass.shape[1],
        )
        result = self._function(call)
        if result == OUT_OF_RANGE:
            raise IndexError("a row of the step or a block of its table is out of range")
        if result != DONE:
            raise MemoryError("there is not enough memory for the scores of a tile")

    def _layer_options(self, layer: ServedLayer) -> _Options:
        options = self._options.get(layer)
        if options is None:
            given = (layer.slopes, layer.sinks)
            options = _Options(*(None if each is None else each.float().contiguous() for each in given))
            self._options[layer] = options
        return options


class _Options(NamedTuple):
    """Slopes and sinks of a layer in float32."""

    slopes: Float[Tensor, " heads"] | None
    sinks: Float[Tensor, " heads"] | None


def tile_tensor(tiles: Sequence[Tile]) -> Int[Tensor, "tiles fields"]:
    """Return tiles in the form that the kernel takes."""
    return torch.tensor(tiles, dtype=torch.int64)


def span_tensor(
    spans: Sequence[Iterable[tuple[int, int]]], wanted: StatisticsWanted
) -> Int[Tensor, "requests spans 2"] | None:
    """Return the spans of all requests, after the first key if its weight is wanted; None without any."""
    each_request = [[*([FIRST_KEY] if wanted.sink else []), *each] for each in spans]
    width = max(map(len, each_request))
    if width == 0:
        return None
    return torch.tensor([each + [NO_KEY] * (width - len(each)) for each in each_request])


class _Call(ctypes.Structure):
    """Arguments of the C++ function, in the order of its struct."""

    _fields_ = [
        ("key", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("key_dtype", "block_count", "block_stride", "head_stride")),
        *((name, ctypes.c_int64) for name in ("token_stride", "dim_stride")),
        ("order", ctypes.c_void_p),
        ("query", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("query_dtype", "query_count", "query_stride")),
        ("table", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("request_count", "table_columns", "table_stride")),
        *((name, ctypes.c_int64) for name in ("kv_heads", "group", "dims", "block", "window")),
        *((name, ctypes.c_double) for name in ("scale", "softcap")),
        *((name, ctypes.c_void_p) for name in ("slopes", "sinks", "tiles")),
        ("tile_count", ctypes.c_int64),
        ("spans", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("span_count", "weight_keys")),
        *((name, ctypes.c_void_p) for name in OUTPUTS),
        ("rows", ctypes.c_int64),
    ]
