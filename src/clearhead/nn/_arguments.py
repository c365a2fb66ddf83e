"""Validation of the arguments of `MultiHeadAttention`'s constructor and of its calls."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clearhead._utils.checks import check_choice, describe
from clearhead._utils.tensor_checks import check_dense_tensor, check_float_tensor, reject_inference_tensor
from clearhead.nn.kv_cache import KVCache, KVCacheView
from clearhead.nn.rope import Rotary
from clearhead.ops.masks import Mask


def check_split(split: object, *, d_model: int, heads: int, kv_input_dim: int, kv_heads: int) -> str:
    split = check_choice("split", split, ("project", "slice"))
    if split == "slice":
        for name, width, divisor, count in (
            ("d_model", d_model, "heads", heads),
            ("kv_input_dim", kv_input_dim, "kv_heads", kv_heads),
        ):
            if width % count:
                raise ValueError(f"{name} {width} is not divisible by {divisor} {count}, as split='slice' requires")
    return split


def check_rope(rope: object, key_dim: int) -> Rotary | None:
    """Return the rotary encoding of a layer whose heads have `key_dim` columns, or None."""
    if rope is None or rope is False:
        return None
    rope = Rotary() if rope is True else rope
    if not isinstance(rope, Rotary):
        raise TypeError(f"rope is {describe(rope)}; expected a Rotary, True for Rotary(), or None")
    rope.rotary_dims(key_dim)
    return rope


def check_inputs(x: Tensor, memory: Tensor | None, *, d_model: int, kv_input_dim: int, has_rope: bool) -> None:
    x = check_float_tensor("x", x, f"[batch, q_len, {d_model}] (d_model)")
    if x.ndim != 3 or x.shape[2] != d_model:
        raise ValueError(f"x has shape {tuple(x.shape)}; expected [batch, q_len, {d_model}] (d_model)")
    if memory is None:
        if kv_input_dim != d_model:
            raise ValueError(
                f"memory is None, but this layer projects keys from kv_input_dim {kv_input_dim} columns and x has"
                f" d_model {d_model}; pass memory"
            )
        return
    memory = check_float_tensor("memory", memory, f"[batch, kv_len, {kv_input_dim}] (kv_input_dim)")
    if memory.ndim != 3 or memory.shape[2] != kv_input_dim:
        shape = f"memory has shape {tuple(memory.shape)}"
        raise ValueError(f"{shape}; expected [batch, kv_len, {kv_input_dim}] (kv_input_dim)")
    if memory.shape[0] != x.shape[0]:
        raise ValueError(f"memory has batch {memory.shape[0]}, but x has {x.shape[0]}; expected the same")
    if has_rope:
        raise ValueError(
            "memory is given to a layer with rope; expected None, because rope encodes positions of one text, x"
        )


def check_cache(cache: KVCache | None, x: Tensor, memory: Tensor | None) -> None:
    if cache is None:
        return
    if not isinstance(cache, KVCache):
        raise TypeError(f"cache is a {type(cache).__name__}; expected a clearhead.KVCache")
    if cache.lengths and len(cache.lengths) != x.shape[0]:
        raise ValueError(f"cache holds {len(cache.lengths)} sequences, but x has batch {x.shape[0]}")
    if memory is not None and cache.window is not None:
        raise ValueError(f"cache is a {type(cache).__name__}; expected a KVCache, which keeps all of memory")


def check_positions(positions: Tensor | None, x: Tensor, *, has_rope: bool) -> None:
    if positions is None:
        return
    if not has_rope:
        raise ValueError("positions is given to a layer without rope; expected None, because only rope uses it")
    expected = f"an int64 or int32 tensor ({x.shape[1]},) or {tuple(x.shape[:2])}"
    positions = check_dense_tensor("positions", positions, expected)
    has_int_dtype = positions.dtype in (torch.int64, torch.int32)
    if not has_int_dtype or positions.shape not in (x.shape[1:2], x.shape[:2]):
        shape = f"positions has shape {tuple(positions.shape)}"
        raise ValueError(f"{shape} in {positions.dtype}; expected {expected}")


def check_cached(view: KVCacheView, mask: object, bias: object) -> None:
    """Reject masks and biases indexed by absolute key position once the cache has evicted the first keys."""
    if view.complete:
        return
    evicted = "the cache has evicted the start of the text"
    if isinstance(mask, Tensor) or (isinstance(mask, Mask) and not mask.relative):
        raise ValueError(f"mask depends on absolute key positions, but {evicted}; use Causal and Window, or a KVCache")
    if isinstance(bias, Tensor) and bias.ndim and bias.shape[-1] > 1:
        raise ValueError(f"bias depends on absolute key positions, but {evicted}; use ALiBi, or a KVCache")


def project(projection: nn.Module, name: str, x: Tensor) -> Tensor:
    """Project an input. If this fails, raise an error that names an input whose dtype or device is not the layer's.

    They are compared only after a failure, because they may differ under autocast, quantization and offloading.
    """
    try:
        return projection(x)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        reject_inference_tensor(name, x)
        weight = getattr(projection, "weight", None)
        if isinstance(weight, Tensor) and weight.device != x.device:
            raise ValueError(
                f"{name} is on {x.device}, but the layer's parameters are on {weight.device}; expected the same device"
            ) from error
        if isinstance(weight, Tensor) and weight.dtype != x.dtype:
            raise TypeError(
                f"{name} has dtype {x.dtype}, but the layer's parameters have {weight.dtype}; expected the same:"
                f" {name}.to({weight.dtype}) or layer.to({x.dtype})"
            ) from error
        raise
