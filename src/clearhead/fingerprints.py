"""Noticing that a tensor was changed in place since it was last looked at."""

import torch
from jaxtyping import Int
from torch import Tensor


def fingerprint(tensor: Tensor) -> int | Int[Tensor, ""]:
    """What changes when a tensor is changed in place: its version, or a hash where versions are not kept.

    That is in a compiled graph, whose intermediate results are numbered differently, and in inference mode.
    """
    return _hash(tensor) if torch.compiler.is_compiling() or tensor.is_inference() else tensor._version


def unchanged(tensor: Tensor, then: int | Int[Tensor, ""]) -> bool:
    return bool(_hash(tensor) == then) if isinstance(then, Tensor) else tensor._version == then


def _hash(tensor: Tensor) -> Int[Tensor, ""]:
    """The bits of all numbers added up, weighted by their place in the row and the row's place, modulo 2⁶⁴."""
    bits = tensor.detach().view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])
    rows = (bits * torch.arange(1, 2 * bits.shape[-1], 2, device=bits.device)).sum(dim=-1).flatten()
    return (rows * torch.arange(1, 2 * rows.shape[0], 2, device=rows.device)).sum()
