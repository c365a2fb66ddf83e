"""Validation of the arguments of one attention call."""

from __future__ import annotations

import math
from typing import Literal, TypedDict

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead._utils.checks import check_bool, check_float
from clearhead._utils.tensor_checks import (
    FLOAT_DTYPES,
    check_dense_tensor,
    check_float_tensor,
    check_query_start,
    reject_inference_tensor,
)
from clearhead.ops.alibi import ALiBi
from clearhead.ops.call import AttentionCall
from clearhead.ops.masks import Dense, Mask


class AttentionOptions(TypedDict, total=False):
    """Keyword arguments of `attention()` that change the result."""

    mask: Mask | Tensor | None
    bias: Tensor | ALiBi | None
    scale: float | None
    softcap: float | None
    sinks: Tensor | None
    dropout: float
    query_start: int | Tensor | None


STRIDED = torch.strided  # a module global: looking it up in torch on every call takes longer


def build_call(
    query: Float[Tensor, "batch heads q_len key_dim"],
    key: Float[Tensor, "batch kv_heads kv_len key_dim"],
    value: Float[Tensor, "batch kv_heads kv_len value_dim"],
    *,
    mask: Mask | Tensor | None = None,
    bias: Tensor | ALiBi | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    query_start: int | Tensor | None = None,
) -> AttentionCall:
    """Validate the arguments of one attention call and fill in its defaults.

    Checks shapes, dtypes and devices. Tensor values are never read, because that would synchronize with the GPU.
    """
    if not (
        isinstance(query, Tensor)
        and isinstance(key, Tensor)
        and isinstance(value, Tensor)
        and query.layout is key.layout is value.layout is STRIDED
        and query.dtype == key.dtype == value.dtype
        and query.dtype in FLOAT_DTYPES
        and query.device == key.device == value.device
    ):
        _refuse_tensors(query, key, value)
    try:
        batch, heads, q_len, key_dim = query.shape
        key_batch, kv_heads, kv_len, key_width = key.shape
        value_batch, value_heads, value_len, _ = value.shape
    except (ValueError, RuntimeError):  # not four axes; a nested tensor has no shape
        _refuse_tensors(query, key, value)
        raise
    if key_batch != batch or value_batch != batch:
        raise ValueError(f"query has batch {batch}, key {key_batch} and value {value_batch}; expected the same")
    if kv_heads == 0 or heads == 0 or heads % kv_heads:
        raise ValueError(f"key has {kv_heads} heads, but query's {heads} heads are not a multiple of it")
    if value_heads != kv_heads:
        raise ValueError(f"value has {value_heads} heads, but key has {kv_heads}; expected the same")
    if value_len != kv_len:
        raise ValueError(f"value has {value_len} positions, but key has {kv_len}; expected the same")
    if key_width != key_dim or key_dim == 0:
        raise ValueError(f"key has key_dim {key_width} and query {key_dim}; expected the same, at least 1")
    shape = (batch, heads, q_len, kv_len)
    call = AttentionCall(
        query,
        key,
        value,
        None if mask is None else _mask(mask, shape, query.device),
        None if bias is None else _bias(bias, shape, query),
        check_scale(scale, key_dim),
        check_softcap(softcap),
        None if sinks is None else _sinks(sinks, heads, query.device),
        dropout=check_dropout(dropout),
        query_start=_query_start(query_start, batch, kv_len - q_len, query.device),
        seed=torch.randint(-(2**31), 2**31, (2,)) if dropout else None,
    )
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        options = bias is not None or sinks is not None
        if options or query.is_inference() or key.is_inference() or value.is_inference():
            _refuse_inference(call)
    return call


def _refuse_tensors(query: object, key: object, value: object) -> None:
    """Raise an error that names the first invalid tensor of the three."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        tensor = check_dense_tensor(name, tensor, "a tensor [batch, heads, length, dim]")
        if tensor.ndim != 4:
            raise ValueError(
                f"{name} has {tensor.ndim} axes, shape {tuple(tensor.shape)}; expected 4: [batch, heads, length, dim]"
            )
        assert isinstance(query, Tensor)  # checked in the first iteration
        if tensor.dtype != query.dtype or tensor.dtype not in FLOAT_DTYPES:
            expected = "float64, float32, bfloat16 or float16" if name == "query" else f"query's {query.dtype}"
            raise TypeError(f"{name} has dtype {tensor.dtype}; expected {expected}")
        if tensor.device != query.device:
            raise ValueError(f"{name} is on {tensor.device}, but query is on {query.device}")


def _refuse_inference(call: AttentionCall) -> None:
    if not call.requires_grad():
        return
    named = {"query": call.query, "key": call.key, "value": call.value, "sinks": call.sinks}
    for name, tensor in (named | {"bias": call.tensor_bias if call.slopes is None else call.slopes}).items():
        if tensor is not None:
            reject_inference_tensor(name, tensor)


def _mask(mask: object, shape: tuple[int, int, int, int], device: torch.device) -> Mask:
    if isinstance(mask, Tensor):
        mask = check_dense_tensor("mask", mask, "a mask such as Causal(), or a bool tensor")
        if mask.dtype != torch.bool:
            raise TypeError(
                f"mask is a tensor of dtype {mask.dtype}; expected torch.bool, True = may attend"
                " (to add numbers to the scores, pass them as `bias`)"
            )
        mask = Dense(mask)
    if not isinstance(mask, Mask):
        raise TypeError(f"mask is a {type(mask).__name__}; expected a mask such as Causal(), or a bool tensor")
    error = mask.shape_error(*shape)
    if error:
        raise ValueError(f"mask does not fit: {error}")
    if mask.device not in (None, device):
        raise ValueError(f"mask is on {mask.device}, but query is on {device}")
    return mask


def _bias(bias: object, shape: tuple[int, int, int, int], query: Tensor) -> Tensor | ALiBi:
    tensor = bias.slopes if isinstance(bias, ALiBi) else bias
    tensor = check_dense_tensor("bias", tensor, "a float tensor or ALiBi(slopes)")
    if tensor.device != query.device:
        raise ValueError(f"bias is on {tensor.device}, but query is on {query.device}")
    if isinstance(bias, ALiBi):
        if tensor.shape[0] != shape[1]:
            raise ValueError(f"bias: ALiBi has {tensor.shape[0]} slopes, but query has {shape[1]} heads")
        return bias
    if tensor.dtype not in FLOAT_DTYPES:
        hint = "; pass a bool tensor as `mask`" if tensor.dtype == torch.bool else ""
        raise TypeError(f"bias has dtype {tensor.dtype}; expected a float dtype{hint}")
    fits = tensor.ndim <= 4 and all(
        size in (1, wanted) for size, wanted in zip(tensor.shape[::-1], shape[::-1], strict=False)
    )
    if not fits:
        raise ValueError(f"bias has shape {tuple(tensor.shape)}, which does not broadcast to {shape}")
    return tensor[(None,) * (4 - tensor.ndim)] if tensor.ndim < 4 else tensor


def check_scale(scale: float | None, key_dim: int) -> float:
    if scale is None:
        return 1.0 / math.sqrt(key_dim)
    return check_float("scale", scale, "a finite number, or None for 1/√key_dim")


def check_softcap(softcap: object) -> float | None:
    if softcap is None:
        return None
    expected = "a finite number above 0, or None for no cap"
    value = check_float("softcap", softcap, expected)
    if value <= 0:
        raise ValueError(f"softcap is {softcap}; expected {expected}")
    return value


def _sinks(sinks: object, heads: int, device: torch.device) -> Tensor:
    sinks = check_float_tensor("sinks", sinks, "a float tensor [heads]")
    if sinks.shape != (heads,):
        raise ValueError(f"sinks has shape {tuple(sinks.shape)}; expected ({heads},), one logit per head")
    if sinks.device != device:
        raise ValueError(f"sinks is on {sinks.device}, but query is on {device}")
    return sinks


def check_dropout(dropout: float) -> float:
    if type(dropout) is float and 0.0 <= dropout < 1.0:
        return dropout
    value = check_float("dropout", dropout, "a number in [0, 1)")
    if not 0.0 <= value < 1.0:
        raise ValueError(f"dropout is {dropout}; expected a number in [0, 1)")
    return value


def check_return_weights(return_weights: object) -> bool | Literal["keep_qk"]:
    if isinstance(return_weights, str) and return_weights == "keep_qk":
        return "keep_qk"
    return check_bool("return_weights", return_weights)


def _query_start(query_start: object, batch: int, default: int, device: torch.device) -> int | Tensor:
    if query_start is None:
        return default
    start = check_query_start(query_start)
    if not isinstance(start, Tensor):
        return start
    if start.is_meta and not device.type == "meta":
        raise ValueError(f"query_start is on the meta device, but query is on {device}")
    if start.ndim == 0:
        return start.expand(batch)
    if start.shape != (batch,):
        raise ValueError(
            f"query_start has shape {tuple(start.shape)}; expected ({batch},), one per sequence, or an int"
        )
    return start
