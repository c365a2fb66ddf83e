"""Padding queries and shapes of calls, from what transformers and its modules pass to attention functions."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from clearhead.huggingface.lazy_mask import LazyMask, find_valid_queries
from clearhead.watching.model_adapters import StatedShape

# attributes of the masks that transformers makes while models are watched
VALID_QUERIES = "_clearhead_valid_queries"
VISIBLE = "_clearhead_visible"


class _State(threading.local):
    """Arguments of the attention function that is running."""

    module: nn.Module | None = None
    shape: StatedShape | None = None
    mask: Any = None


_state = _State()


def observed_masks(original: Any, interface: Any, implementation: Any) -> Any:
    """Wrap `AttentionMaskInterface.__getitem__`, which returns the mask function of an implementation."""
    function = original(interface, implementation)
    return function if torch.compiler.is_compiling() else functools.partial(_observed_mask, function)


def _observed_mask(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a mask function, and remember which queries of the mask are padding."""
    mask = function(*args, **kwargs)
    if mask is not None and not isinstance(mask, LazyMask) and not args:  # transformers passes keywords only
        setattr(mask, VALID_QUERIES, find_valid_queries(**kwargs))
    return mask


def remember_call(function: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call an attention function, while `padding_of_mask` and `shape_of_call` refer to its arguments."""
    arguments = dict(zip(("query", "key", "value", "attention_mask"), args, strict=False)) | kwargs
    _state.module, _state.mask, _state.shape = module, arguments.get("attention_mask"), None
    query, key = arguments.get("query"), arguments.get("key")
    if isinstance(query, Tensor) and isinstance(key, Tensor) and query.ndim == key.ndim == 4:
        _state.shape = StatedShape(query.shape[1], key.shape[1], query.shape[2])
    try:
        return function(module, *args, **kwargs)
    finally:
        _state.module = _state.shape = _state.mask = None


def shape_of_call(module: nn.Module) -> StatedShape | None:
    """Return the shape of the call that a module passed to the attention function that is running."""
    return _state.shape if _state.module is module else None


def has_known_padding() -> bool:
    """Return whether transformers made the mask of the attention function that is running."""
    mask = _state.mask
    return mask.query_start is not None if isinstance(mask, LazyMask) else hasattr(mask, VALID_QUERIES)


def padding_of_mask() -> Bool[Tensor, "batch q_len"] | None:
    """Return the padding queries of the attention function that is running; None without padding."""
    mask = _state.mask
    valid = mask.valid_queries if isinstance(mask, LazyMask) else getattr(mask, VALID_QUERIES)
    return None if valid is None else ~valid


def split_additive(mask: Tensor) -> tuple[Bool[Tensor, ...], Tensor | None]:
    """Return where an additive mask is above the lowest number, and what it adds there; None if that is 0.

    Without the split, all scores of a row without visible keys would be equal in floating point.
    """
    visible = getattr(mask, VISIBLE, None)
    if visible is None:
        visible = mask > torch.finfo(mask.dtype).min
    if not hasattr(mask, VALID_QUERIES):
        return visible, mask.masked_fill(~visible, 0.0)
    setattr(mask, VISIBLE, visible)  # all layers share the mask, which contains 0 and the lowest number only
    return visible, None
