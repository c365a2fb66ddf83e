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
    rows = (bits * _odd_numbers(bits.shape[-1], bits.device)).sum(dim=-1).flatten()
    return (rows * _odd_numbers(rows.shape[0], rows.device)).sum()


def _odd_numbers(count: int, device: torch.device) -> Int[Tensor, " count"]:
    return 2 * torch.arange(count, device=device) + 1
