"""Checks of tensors, dtypes and devices."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from clearhead._utils.checks import MAX_INT, check_int, describe
from clearhead._utils.torch_internals import in_functorch_transform, is_fake

FLOAT_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
INT_DTYPES = (
    *(torch.int64, torch.int32, torch.int16, torch.int8),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)


def is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor is strided: not sparse, nested or of another layout."""
    return tensor.layout is torch.strided and not tensor.is_nested


def check_dense_tensor(name: str, tensor: object, expected: str) -> Tensor:
    """Return `tensor` if it is dense, so that its shape and strides can be read; raise otherwise."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is {_kind(tensor)}; expected {expected}")
    if tensor.is_nested:
        raise TypeError(
            f"{name} is a nested tensor; expected {expected}: pad it with {name}.to_padded_tensor(0.0) and mask the"
            " padding with mask=Padding(lengths)"
        )
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name} has layout {tensor.layout}; expected {expected}, dense: call {name}.to_dense()")
    return tensor


def check_float_tensor(name: str, tensor: object, expected: str) -> Tensor:
    """Return `tensor` if it is dense and of a dtype that attention supports; raise otherwise."""
    tensor = check_dense_tensor(name, tensor, expected)
    if tensor.dtype not in FLOAT_DTYPES:
        raise TypeError(f"{name} has dtype {tensor.dtype}; expected float64, float32, bfloat16 or float16")
    return tensor


def check_int_tensor(name: str, tensor: Tensor) -> Tensor:
    """Return a dense tensor of integers as int64."""
    tensor = check_dense_tensor(name, tensor, "a tensor of whole numbers")
    if tensor.dtype not in INT_DTYPES:
        raise TypeError(f"{name} has dtype {tensor.dtype}; expected whole numbers")
    return tensor.long()


def check_query_start(query_start: object) -> int | Tensor:
    """Return the position of the first query as an int or an int64 tensor of any shape."""
    if isinstance(query_start, Tensor):
        return check_int_tensor("query_start", query_start)
    if isinstance(query_start, np.integer):
        query_start = int(query_start)
    if isinstance(query_start, bool) or not isinstance(query_start, int):
        raise TypeError(f"query_start is {describe(query_start)}; expected an int or an int tensor [batch]")
    if not -MAX_INT <= query_start < MAX_INT:
        raise ValueError(f"query_start is {describe(query_start)}; expected a position between −2³¹ and 2³¹")
    return query_start


def has_readable_values(tensor: Tensor) -> bool:
    """Return whether the values of a tensor can be read.

    They cannot in a compiled graph, under functorch transforms such as vmap, or for meta and fake tensors.
    """
    if torch.compiler.is_compiling() or tensor.is_meta or is_fake(tensor):
        return False
    return not in_functorch_transform()


def reject_inference_tensor(name: str, tensor: Tensor) -> None:
    """Raise for an inference tensor, which autograd cannot save. Call it if another input requires a gradient."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling() and tensor.is_inference():
        raise RuntimeError(
            f"{name} was created in inference mode, but a gradient is recorded; pass {name}.clone(), or call it"
            " under torch.no_grad()"
        )


def check_axis(name: str, value: object, ndim: int) -> int:
    """Return the index of an axis of a tensor with `ndim` axes. A negative index counts from the last axis."""
    axis = check_int(name, value, least=-ndim)
    if axis >= ndim:
        raise IndexError(f"{name} is {axis}; expected an axis from {-ndim} to {ndim - 1}")
    return axis


def check_device(name: str, device: object) -> torch.device | None:
    """Return a device on which tensors can be created. None means torch's default."""
    if device is None:
        return None
    if isinstance(device, bool) or not isinstance(device, str | int | torch.device):
        raise TypeError(f"{name} is {describe(device)}; expected a device such as 'cpu' or 'cuda:0'")
    try:
        usable = torch.device(device)
        torch.empty(0, device=usable)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ValueError, OverflowError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{name} is {describe(device)}, which torch cannot use: {reason}") from None
    return usable


def check_float_dtype(name: str, dtype: object) -> torch.dtype | None:
    """Return a dtype that attention supports. None means torch's default."""
    if dtype is None or (isinstance(dtype, torch.dtype) and dtype in FLOAT_DTYPES):
        return dtype
    raise TypeError(f"{name} is {describe(dtype)}; expected torch.float64, float32, bfloat16 or float16")


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
