"""Cache of tensors that are computed from masks: all layers of a model pass the same mask object."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import Tensor

from clearhead._utils.torch_internals import PLAIN_TENSORS, current_cuda_stream
from clearhead.ops.masks import Mask

T = TypeVar("T")
_CACHE: WeakKeyDictionary[Mask, dict[str, tuple[Hashable, object]]] = WeakKeyDictionary()
# keyed by identity, because tensors compare by element; torch's WeakIdKeyDictionary takes twice as long to look up
_RESULTS_OF_TENSORS: dict[int, tuple[ReferenceType[Tensor], dict[Hashable, object]]] = {}
MAX_RESULTS_PER_TENSOR = 8


def is_cacheable(query: Tensor) -> bool:
    """Return whether a result may outlive this call: False while tracing or capturing a CUDA graph."""
    if torch.compiler.is_compiling() or type(query) not in PLAIN_TENSORS:
        return False
    return query.device.type != "cuda" or not torch.cuda.is_current_stream_capturing()


def cached(mask: Mask, kind: str, key: Hashable, compute: Callable[[], T]) -> T:
    """Return the cached result of this kind for a mask, or compute it again if the key has changed.

    Args:
        mask: mask that the result is computed from.
        kind: name of the result. Only the last result of a kind is kept.
        key: everything else that the result depends on. The mask's version is added to it.
        compute: called without arguments if there is no cached result.
    """
    results = _CACHE.get(mask)
    if results is None:
        results = _CACHE[mask] = {}
    key = (key, mask.version)
    last = results.get(kind)
    if last is None or last[0] != key:
        with torch.inference_mode(False):  # autograd could not save an inference tensor in a later call
            last = results[kind] = (key, compute())
    return last[1]  # pyright: ignore[reportReturnType]


def keep_results_for(tensor: Tensor) -> None:
    """Let `cached_for_tensor` keep results for a tensor that never changes, such as the key ranges of a cached mask."""
    identity = id(tensor)
    _RESULTS_OF_TENSORS[identity] = ref(tensor, lambda _: _RESULTS_OF_TENSORS.pop(identity, None)), {}


def cached_for_tensor(tensor: Tensor, key: Hashable, compute: Callable[[], T]) -> T:
    """Return the cached result for a tensor and a key, or compute it.

    Results are kept only after `keep_results_for`. In a compiled graph, tensors and results may belong to the memory
    pool of a CUDA graph, so they must not outlive the call.
    """
    kept = _RESULTS_OF_TENSORS.get(id(tensor))
    if kept is None or kept[0]() is not tensor:
        return compute()
    results = kept[1]
    if key not in results:
        if len(results) >= MAX_RESULTS_PER_TENSOR:
            results.pop(next(iter(results)))  # the oldest
        with torch.inference_mode(False):
            results[key] = compute()
    return results[key]  # pyright: ignore[reportReturnType]


def current_stream(device: torch.device) -> int:
    """Return the current CUDA stream, as part of a key: a result is ready only on the stream that computed it."""
    return current_cuda_stream(device) if device.type == "cuda" else 0
