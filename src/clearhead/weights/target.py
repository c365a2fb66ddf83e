"""Parsing of the arguments of `to`: a device and a dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from clearhead._utils.checks import describe
from clearhead._utils.tensor_checks import check_device
from clearhead.weights.tensor_like import TensorLike


def parse_target(
    target: Sequence[object], device: object = None, dtype: object = None
) -> tuple[torch.device | None, torch.dtype | None]:
    """Return the device and the dtype of the positional and the named arguments of `Tensor.to`; None if not given."""
    if len(target) == 1:
        (other,) = target
        if isinstance(other, Tensor | TensorLike):
            matrix: Any = other
            target = (matrix.device, matrix.dtype)
        elif isinstance(other, torch.dtype):
            target = (None, other)
    if len(target) > 2:
        raise TypeError(f"to() has {len(target)} positional arguments; expected at most a device and a dtype")
    for name, position, named in zip(("device", "dtype"), target, (device, dtype), strict=False):
        if position is not None and named is not None:
            raise TypeError(f"{name} is {describe(position)} and {describe(named)}; expected it once")
    device, dtype = (a if b is None else b for a, b in zip((*target, None, None), (device, dtype), strict=False))
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype is {describe(dtype)}; expected a torch.dtype, such as torch.float16")
    return check_device("device", device), dtype
