"""Detection of in-place changes to the tensors that a lazy matrix holds."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from clearhead._utils.torch_internals import version_of
from clearhead.ops.call import AttentionCall

NamedTensors = Sequence[tuple[str, Tensor]]


class Fingerprints:
    """Fingerprints of tensors, which detect in-place changes."""

    def __init__(self, inputs: NamedTensors) -> None:
        self._states = [_fingerprint(tensor) for _, tensor in inputs]

    def check(self, inputs: NamedTensors) -> None:
        """Raise if one of the tensors was changed since the fingerprints were taken."""
        for (name, tensor), state in zip(inputs, self._states, strict=True):
            if not _is_unchanged(tensor, state):
                raise RuntimeError(
                    f"{name} was changed in place after the attention of these weights ran, so they can no longer be"
                    f" computed; pass a clone of {name} to attention, read the weights before changing it, or request"
                    " statistics from watch()"
                )


def inputs_of(call: AttentionCall) -> list[tuple[str, Tensor]]:
    """Return the user's tensors that determine the weights, with their argument names in `attention()`."""
    named = [("query", call.query), ("key", call.key), ("sinks", call.sinks)]
    named += [("bias", call.tensor_bias if call.slopes is None else call.slopes)]
    named += [("mask", tensor) for tensor in (() if call.mask is None else call.mask.tensors)]
    return [(name, tensor) for name, tensor in named if tensor is not None]


def _fingerprint(tensor: Tensor) -> int | Int[Tensor, ""]:
    """Return a tensor's version, or a hash in compiled graphs and inference mode, which have no version counter."""
    has_version = not torch.compiler.is_compiling() and not tensor.is_inference()
    return version_of(tensor) if has_version else _hash(tensor)


def _is_unchanged(tensor: Tensor, state: int | Int[Tensor, ""]) -> bool:
    return bool(_hash(tensor) == state) if isinstance(state, Tensor) else version_of(tensor) == state


def _hash(tensor: Tensor) -> Int[Tensor, ""]:
    """Return the sum of all elements' bits, weighted by column and row, modulo 2⁶⁴."""
    bits = tensor.detach().view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])
    rows = (bits * _odd_numbers(bits.shape[-1], bits.device)).sum(dim=-1).flatten()
    return (rows * _odd_numbers(rows.shape[0], rows.device)).sum()


def _odd_numbers(count: int, device: torch.device) -> Int[Tensor, " count"]:
    return 2 * torch.arange(count, device=device) + 1
