"""Validation of the arguments of attention over a sharded text.

Every rank validates before the first collective: if one rank raises later, the others wait in a collective forever.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from clearhead._utils.tensor_checks import check_dense_tensor, check_float_tensor
from clearhead.distributed.layout import ZigzagLayout
from clearhead.ops.masks import Dense, Mask


def check_layout(layout: ZigzagLayout, group: ProcessGroup | None) -> int:
    """Return this process's rank in a group of as many ranks as the layout."""
    if not isinstance(layout, ZigzagLayout):
        raise TypeError(f"layout is {layout!r}; expected a ZigzagLayout, such as ZigzagLayout(length, ranks)")
    return layout.rank_in(group)


def check_shard(name: str, tensor: Tensor, layout: ZigzagLayout, rank: int) -> None:
    tensor = check_float_tensor(name, tensor, "[batch, heads, shard_len, width]")
    if tensor.ndim != 4:
        raise ValueError(f"{name} is {tuple(tensor.shape)}; expected [batch, heads, shard_len, width]")
    if tensor.shape[2] != layout.count(rank):
        raise ValueError(
            f"{name} has {tensor.shape[2]} tokens, but rank {rank} of {layout.ranks} holds {layout.count(rank)} of"
            f" {layout.length} tokens; expected the result of layout.shard"
        )


def check_key_value(key: Tensor, value: Tensor, layout: ZigzagLayout, rank: int) -> None:
    check_shard("key", key, layout, rank)
    check_shard("value", value, layout, rank)
    if key.shape[:2] != value.shape[:2] or (key.dtype, key.device) != (value.dtype, value.device):
        raise ValueError(
            f"value is {tuple(value.shape)} in {value.dtype} on {value.device}, but key {tuple(key.shape)} in"
            f" {key.dtype} on {key.device}; expected the same batch, heads, dtype and device"
        )


def check_bias(bias: object, shape: tuple[int, ...]) -> None:
    if not isinstance(bias, Tensor):
        return  # attention() rejects other types than ALiBi
    check_float_tensor("bias", bias, "a float tensor")
    sizes = zip(bias.shape[::-1], shape[::-1], strict=False)
    if bias.ndim > 4 or any(size not in (1, expected) for size, expected in sizes):
        raise ValueError(f"bias is {tuple(bias.shape)}; expected a shape that broadcasts to {shape}, the whole text")


def check_sinks(sinks: Tensor | None, heads: int, device: torch.device) -> None:
    if sinks is None:
        return
    sinks = check_float_tensor("sinks", sinks, f"({heads},), one per head")
    if sinks.device != device:
        raise ValueError(f"sinks is on {sinks.device}, but query is on {device}; expected the same")
    if sinks.shape != (heads,):
        raise ValueError(f"sinks is {tuple(sinks.shape)}; expected ({heads},), one per head")


def check_mask(mask: Mask | Tensor, shape: tuple[int, int, int, int]) -> Mask:
    """Return a mask that fits `[batch, heads, q_len, kv_len]`; a bool tensor becomes a `Dense`."""
    if isinstance(mask, Tensor):
        mask = check_dense_tensor("mask", mask, "a mask such as Causal(), or a bool tensor")
        if mask.dtype != torch.bool or mask.ndim > 4:
            shape_and_dtype = f"{tuple(mask.shape)} in {mask.dtype}"
            raise TypeError(f"mask is {shape_and_dtype}; expected torch.bool of at most 4 axes")
        mask = Dense(mask)
    if not isinstance(mask, Mask):
        raise TypeError(f"mask is a {type(mask).__name__}; expected a mask such as Causal(), or a bool tensor")
    error = mask.shape_error(*shape)
    if error is not None:
        raise ValueError(f"mask: {error}")
    return mask
