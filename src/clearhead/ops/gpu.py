"""Properties of a GPU that the choice of kernels and of their tiles depends on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import torch

from clearhead.ops.call import AttentionCall

Function = TypeVar("Function", bound=Callable[..., Any])


class GPU(NamedTuple):
    """Compute capability and shared memory of a GPU."""

    capability: tuple[int, int]
    shared_memory: int  # bytes that one program may use

    @property
    def has_wgmma(self) -> bool:
        """True if tensor cores read tiles from shared memory, where the copy engine (TMA) puts them.

        Compute capability 10.0 has the successor of wgmma. On other GPUs a tile goes through registers, and Triton
        pipelines loads by pointers, but not loads by TMA.
        """
        return self.capability[0] in (9, 10) and torch.version.hip is None


# the entry of the CPU is for Triton's interpreter
_GPUS: dict[torch.device, GPU] = {torch.device("cpu"): GPU((9, 0), 232_448)}


def shared_memory_of(properties: Any) -> int:
    """Return the bytes of shared memory per block from torch's device properties, which lack it on AMD GPUs."""
    return getattr(properties, "shared_memory_per_block_optin", 65_536)


def gpu_of(device: torch.device) -> GPU:
    """Return the properties of a GPU, cached because torch's lookup takes microseconds."""
    if device not in _GPUS:  # torch.compile warns about functools.cache
        properties = torch.cuda.get_device_properties(device)
        _GPUS[device] = GPU((properties.major, properties.minor), shared_memory_of(properties))
    return _GPUS[device]


def on_device_of_query(function: Function) -> Function:
    """Make the GPU of the queries current inside a function, because Triton launches kernels on the current GPU.

    The function takes an `AttentionCall` first.
    """

    @functools.wraps(function)
    def run(call: AttentionCall, *args: Any, **kwargs: Any) -> Any:
        device = call.query.device
        if device.type != "cuda" or device.index == torch.cuda.current_device():
            return function(call, *args, **kwargs)
        with torch.cuda.device(device):
            return function(call, *args, **kwargs)

    return cast(Function, run)
