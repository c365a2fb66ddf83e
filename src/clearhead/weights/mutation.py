"""Noticing that a tensor was changed in place since it was last looked at."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from jaxtyping import Int
from torch import Tensor

_trusting: ContextVar[bool] = ContextVar("trusting", default=False)


@contextmanager
def used_at_once() -> Iterator[None]:
    """For what is read where it is made, before anything can change it: no fingerprints are taken.

    In inference mode they are hashes, and comparing them would make a GPU wait in every layer of a model.
    """
    token = _trusting.set(True)
    try:
        yield
    finally:
        _trusting.reset(token)


def fingerprint(tensor: Tensor) -> int | Int[Tensor, ""] | None:
    """What changes when a tensor is changed in place: its version, or a hash where versions are not kept.

    That is in a compiled graph, whose intermediate results are numbered differently, and in inference mode.
    """
    if not torch.compiler.is_compiling() and _trusting.get():
        return None
    return _hash(tensor) if torch.compiler.is_compiling() or tensor.is_inference() else tensor._version


def unchanged(tensor: Tensor, then: int | Int[Tensor, ""] | None) -> bool:
    """True as well of one that no fingerprint was taken of."""
    if then is None:
        return True
    return bool(_hash(tensor) == then) if isinstance(then, Tensor) else tensor._version == then


def _hash(tensor: Tensor) -> Int[Tensor, ""]:
    """The bits of all numbers added up, weighted by their place in the row and the row's place, modulo 2⁶⁴."""
    bits = tensor.detach().view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])
    rows = (bits * _odd_numbers(bits.shape[-1], bits.device)).sum(dim=-1).flatten()
    return (rows * _odd_numbers(rows.shape[0], rows.device)).sum()


def _odd_numbers(count: int, device: torch.device) -> Int[Tensor, " count"]:
    return 2 * torch.arange(count, device=device) + 1
