"""Posing a problem: the checks on one attention call, each an error that says what was given and what was expected."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.biases import ALiBi
from clearhead.masks import Dense, Mask
from clearhead.problem import Problem

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def pose(
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
) -> Problem:
    """Check one attention call and fill in its defaults. Looks at shapes and types only, never at values in tensors."""
    if not (
        isinstance(query, Tensor)
        and isinstance(key, Tensor)
        and isinstance(value, Tensor)
        and query.ndim == key.ndim == value.ndim == 4
        and query.dtype == key.dtype == value.dtype
        and query.dtype in DTYPES
        and query.device == key.device == value.device
    ):
        _refuse_tensors(query, key, value)
    batch, heads, q_len, key_dim = query.shape
    key_batch, kv_heads, kv_len, key_width = key.shape
    value_batch, value_heads, value_len, _ = value.shape
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
    return Problem(
        query,
        key,
        value,
        None if mask is None else _mask(mask, shape, query.device),
        None if bias is None else _bias(bias, shape, query),
        checked_scale(scale, key_dim),
        checked_softcap(softcap),
        None if sinks is None else _sinks(sinks, heads, query.device),
        dropout=checked_dropout(dropout),
        query_start=_query_start(query_start, batch, kv_len - q_len),
        seed=torch.randint(-(2**31), 2**31, (2,)) if dropout else None,
    )


def _refuse_tensors(query: object, key: object, value: object) -> None:
    """Say which of the three is not as it should be, and how."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}; expected a tensor [batch, heads, length, dim]")
        if tensor.ndim != 4:
            raise ValueError(
                f"{name} has {tensor.ndim} axes, shape {tuple(tensor.shape)}; expected 4: [batch, heads, length, dim]"
            )
        assert isinstance(query, Tensor)  # it was looked at first
        if tensor.dtype != query.dtype or tensor.dtype not in DTYPES:
            expected = "float64, float32, bfloat16 or float16" if name == "query" else f"query's {query.dtype}"
            raise TypeError(f"{name} has dtype {tensor.dtype}; expected {expected}")
        if tensor.device != query.device:
            raise ValueError(f"{name} is on {tensor.device}, but query is on {query.device}")


def _mask(mask: object, shape: tuple[int, int, int, int], device: torch.device) -> Mask:
    if isinstance(mask, Tensor):
        if mask.dtype != torch.bool:
            raise TypeError(
                f"mask is a tensor of dtype {mask.dtype}; expected torch.bool, True = may attend"
                " (numbers to be added to the scores are `bias`)"
            )
        mask = Dense(mask)
    if not isinstance(mask, Mask):
        raise TypeError(f"mask is a {type(mask).__name__}; expected a mask such as Causal(), or a bool tensor")
    misfit = mask.misfit(*shape)
    if misfit:
        raise ValueError(f"mask does not fit: {misfit}")
    if mask.device not in (None, device):
        raise ValueError(f"mask is on {mask.device}, but query is on {device}")
    return mask


def _bias(bias: object, shape: tuple[int, int, int, int], query: Tensor) -> Tensor | ALiBi:
    tensor = bias.slopes if isinstance(bias, ALiBi) else bias
    if not isinstance(tensor, Tensor):
        raise TypeError(f"bias is a {type(bias).__name__}; expected a float tensor or ALiBi(slopes)")
    if tensor.device != query.device:
        raise ValueError(f"bias is on {tensor.device}, but query is on {query.device}")
    if isinstance(bias, ALiBi):
        if tensor.shape[0] != shape[1]:
            raise ValueError(f"bias: ALiBi has {tensor.shape[0]} slopes, but query has {shape[1]} heads")
        return bias
    if tensor.dtype not in DTYPES:
        hint = "; a bool tensor is `mask`" if tensor.dtype == torch.bool else ""
        raise TypeError(f"bias has dtype {tensor.dtype}; expected a float dtype{hint}")
    fits = tensor.ndim <= 4 and all(
        size in (1, wanted) for size, wanted in zip(tensor.shape[::-1], shape[::-1], strict=False)
    )
    if not fits:
        raise ValueError(f"bias has shape {tuple(tensor.shape)}, which does not broadcast to {shape}")
    return tensor[(None,) * (4 - tensor.ndim)] if tensor.ndim < 4 else tensor


def checked_scale(scale: float | None, key_dim: int) -> float:
    if scale is None:
        return 1.0 / math.sqrt(key_dim)
    if isinstance(scale, bool) or not isinstance(scale, int | float):
        raise TypeError(f"scale is {scale!r}; expected a number or None for 1/√key_dim")
    if not math.isfinite(scale):
        raise ValueError(f"scale is {scale}; expected a finite number")
    return float(scale)


def checked_softcap(softcap: object) -> float | None:
    if softcap is None:
        return None
    if isinstance(softcap, bool) or not isinstance(softcap, int | float):
        raise TypeError(f"softcap is {softcap!r}; expected a number or None for no cap")
    if not (math.isfinite(softcap) and softcap > 0):
        raise ValueError(f"softcap is {softcap}; expected a finite number above 0, or None for no cap")
    return float(softcap)


def _sinks(sinks: object, heads: int, device: torch.device) -> Tensor:
    if not isinstance(sinks, Tensor) or sinks.dtype not in DTYPES:
        what = f"has dtype {sinks.dtype}" if isinstance(sinks, Tensor) else f"is a {type(sinks).__name__}"
        raise TypeError(f"sinks {what}; expected a float tensor [heads]")
    if sinks.shape != (heads,):
        raise ValueError(f"sinks has shape {tuple(sinks.shape)}; expected ({heads},), one logit per head")
    if sinks.device != device:
        raise ValueError(f"sinks is on {sinks.device}, but query is on {device}")
    return sinks


def checked_dropout(dropout: float) -> float:
    if isinstance(dropout, bool) or not isinstance(dropout, int | float):
        raise TypeError(f"dropout is {dropout!r}; expected a number in [0, 1)")
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout is {dropout}; expected a number in [0, 1)")
    return float(dropout)


def _query_start(query_start: object, batch: int, default: int) -> int | Tensor:
    if query_start is None:
        return default
    if isinstance(query_start, Tensor):
        if query_start.is_floating_point() or query_start.is_complex() or query_start.dtype == torch.bool:
            raise TypeError(f"query_start has dtype {query_start.dtype}; expected whole numbers")
        query_start = query_start.long()
        if query_start.ndim == 0:
            return query_start.expand(batch)
        if query_start.shape != (batch,):
            raise ValueError(
                f"query_start has shape {tuple(query_start.shape)}; expected ({batch},), one per sequence, or an int"
            )
        return query_start
    if isinstance(query_start, bool) or not isinstance(query_start, int):
        raise TypeError(f"query_start is {query_start!r}; expected an int or an int tensor [batch]")
    if not -(2**31) <= query_start < 2**31:
        raise ValueError(f"query_start is {query_start}; expected a position between −2³¹ and 2³¹")
    return query_start
