"""Dtypes of attention under `torch.autocast`."""

from __future__ import annotations

import torch
from torch import Tensor


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Convert tensors to the dtype of autocast, if it is enabled, as `scaled_dot_product_attention` does."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(tensor if tensor.dtype == torch.float64 else tensor.to(dtype) for tensor in tensors)
