"""Mask function that transformers calls, which returns masks without their n × n cells."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformers import masking_utils

from clearhead._utils.torch_internals import no_torch_function, tree_map
from clearhead.huggingface._mask_translation import (
    MaskExtent,
    MaskFunction,
    UnknownFunctionError,
    evaluate,
    intersect,
    is_bidirectional,
    padding_mask,
    translate,
)
from clearhead.huggingface._transformers_internals import runs_own_attention
from clearhead.ops.masks import Causal, Dense, Mask, Window, query_positions

ATEN = torch.ops.aten
# Operators that rearrange cells without changing their values, so that the result is still a mask.
REARRANGING = {
    ATEN.expand.default,
    ATEN.index.Tensor,
    ATEN.index_select.default,
    ATEN.repeat.default,
    ATEN.repeat_interleave.self_int,
    ATEN.select.int,
    ATEN.slice.Tensor,
    ATEN.squeeze.dim,
    ATEN.unsqueeze.default,
    ATEN.view.default,
}


class LazyMask(Tensor):
    """Attention mask of shape [batch, 1, q_len, kv_len] that stores a clearhead mask instead of its cells.

    Models pass the mask on to the attention function, which reads `mask` and `query_start`. Models with their own
    attention code can use it like eager's additive mask: 0 where a query may attend, else the minimum of `dtype`.
    """

    mask: Mask | None  # None if every query may attend to every key
    query_start: int | None  # None if cells were rearranged
    valid_queries: Bool[Tensor, "batch q_len"] | None  # False for padding; None if there is no padding or it is unknown

    @staticmethod
    def __new__(
        cls,
        mask: Mask | None,
        shape: tuple[int, ...],
        query_start: int | None,
        valid_queries: Bool[Tensor, "batch q_len"] | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> LazyMask:
        lazy = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)  # pyright: ignore[reportAttributeAccessIssue]
        lazy.mask, lazy.query_start, lazy.valid_queries = mask, query_start, valid_queries
        return lazy

    def __init__(self, *_: object) -> None:
        pass

    def _copy(self) -> LazyMask:
        return LazyMask(self.mask, self.shape, self.query_start, self.valid_queries, self.dtype, self.device)

    def dense(self) -> Bool[Tensor, "batch heads q_len kv_len"]:
        """Return the mask as bools: True where a query may attend to a key."""
        _, _, q_len, kv_len = self.shape
        if self.mask is None:
            return torch.ones(self.shape, dtype=torch.bool, device=self.device)
        lowered = self.mask.lower(query_positions(q_len, kv_len, self.query_start, self.device), kv_len)
        return lowered.allowed(q_len, torch.arange(kv_len, device=self.device)).expand(self.shape)

    def additive(self) -> Float[Tensor, "batch heads q_len kv_len"]:
        """Return eager's additive mask as a plain tensor."""
        return _additive(self.dense(), self.dtype)

    def __repr__(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return f"LazyMask({self.mask}, {list(self.shape)}, query_start={self.query_start})"

    __torch_function__ = no_torch_function

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if function in (ATEN.detach.default, ATEN.alias.default, ATEN.clone.default):
            return args[0]._copy()
        if function is ATEN.slice.Tensor and _takes_all(*args, **kwargs):
            return args[0]._copy()
        if function._schema.is_mutable and isinstance(args[0], cls):
            raise RuntimeError(
                f"{function} would change {args[0]!r} in place; convert it to a plain tensor with .additive()"
            )
        moved = function is ATEN._to_copy.default and kwargs.get("dtype") in (None, args[0].dtype)
        if (moved or function in REARRANGING) and isinstance(args[0], cls):
            options = {name: value for name, value in kwargs.items() if name != "dtype"}
            cells = function(args[0].dense(), *args[1:], **options)
            if cells.ndim == 4:
                return LazyMask(Dense(cells), cells.shape, None, None, args[0].dtype, cells.device)
            return _additive(cells, args[0].dtype)
        plain = tree_map(lambda x: x.additive() if isinstance(x, cls) else x, (args, kwargs))
        return function(*plain[0], **plain[1])


def _additive(allowed: Bool[Tensor, "*axes"], dtype: torch.dtype) -> Float[Tensor, "*axes"]:
    """Return 0 where True, else the minimum of `dtype`, as transformers' `eager_mask` does."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill(~allowed, torch.finfo(dtype).min)


def _takes_all(mask: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> bool:
    """Return whether a slice keeps all cells: models often slice masks to the number of keys."""
    return range(mask.shape[dim])[slice(start, end, step)] == range(mask.shape[dim])


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    config: Any = None,
    **others: Any,
) -> Tensor:
    """Return a lazy mask, in O(n). The arguments are those of transformers' `eager_mask`.

    transformers' `sdpa_mask` may return None, and the module's `is_causal` then decides which keys are visible. Some
    modules set it wrongly. A lazy mask is cheap, so this function always returns one.

    Compiled code gets eager's mask, which works in clearhead's attention function and in models' own attention code.
    """
    if torch.compiler.is_compiling():
        return masking_utils.eager_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, dtype,  # pyright: ignore[reportArgumentType]
            use_vmap=use_vmap, device=device,
        )  # fmt: skip
    if config is not None and runs_own_attention(type(config)):
        _warn_of_own_attention(config.model_type)
    extent = MaskExtent(batch_size, q_length, kv_length, int(q_offset), kv_offset, torch.device(device))
    try:
        mask = translate(mask_function, extent)
        if attention_mask is not None:
            mask = intersect([mask, _padding(attention_mask, mask, extent)])
    except UnknownFunctionError:
        mask = evaluate(mask_function, extent, attention_mask, use_vmap)
    valid_queries = find_valid_queries(q_length, kv_length, q_offset, mask_function, attention_mask)
    shape = (batch_size, 1, q_length, kv_length)
    return LazyMask(mask, shape, extent.query_start, valid_queries, dtype, extent.device)


def find_valid_queries(
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    mask_function: MaskFunction = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    **others: Any,
) -> Bool[Tensor, "batch q_len"] | None:
    """Return which queries are not padding; None if there is no padding, or if the mask is too short.

    The arguments are those of a mask function. A bidirectional mask may cover the keys of another sequence.
    """
    if attention_mask is None or attention_mask.ndim != 2:
        return None
    if q_length != kv_length and is_bidirectional(mask_function):
        return None
    start = int(q_offset)
    valid = attention_mask[:, start : start + q_length].bool()
    return None if valid.shape[1] < q_length or bool(valid.all()) else valid


@functools.cache  # warn once per model type, not in every forward pass
def _warn_of_own_attention(model_type: str) -> None:
    warnings.warn(
        f"{model_type} models run their own attention code and ignore attn_implementation: their outputs are those of"
        " 'eager', and clearhead cannot show their weights",
        stacklevel=3,
    )


def _padding(attention_mask: Tensor, mask: Mask | None, extent: MaskExtent) -> Mask | None:
    """Return the mask of padding keys. Keys that a causal mask hides, such as free cache slots, count as valid."""
    allowed = extent.select_keys(attention_mask.bool()).to(extent.device)
    if isinstance(mask, Causal) or (isinstance(mask, Window) and mask.after == 0):
        allowed = allowed.clone()
        allowed[:, max(0, extent.query_start + extent.q_len) :] = True
    return padding_mask(allowed)
