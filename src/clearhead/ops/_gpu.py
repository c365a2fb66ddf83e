"""Properties of a GPU that the choice of kernels and of their tiles depends on."""

from __future__ import annotations

from typing import NamedTuple

import torch


class GPU(NamedTuple):
    """Compute capability and shared memory of a GPU."""

    capability: tuple[int, int]
    shared_memory: int  # bytes that one program may use

    @property
    def has_wgmma(self) -> bool:
        """True if tensor cores read tiles from shared memory, where the copy engine (TMA) puts them.

        On other GPUs a tile goes through registers, and Triton pipelines loads by pointers better than those by TMA:
        compiled for compute capability 12.0, kernels with TMA use half the shared memory, and spill registers.
        """
        return self.capability[0] in (9, 10) and torch.version.hip is None


# the entry of the CPU is for Triton's interpreter
_GPUS: dict[torch.device, GPU] = {torch.device("cpu"): GPU((9, 0), 232_448)}


def gpu_of(device: torch.device) -> GPU:
    """Return the properties of a GPU, cached because torch's lookup takes microseconds."""
    if device not in _GPUS:  # torch.compile warns about functools.cache
        properties = torch.cuda.get_device_properties(device)
        _GPUS[device] = GPU((properties.major, properties.minor), properties.shared_memory_per_block_optin)
    return _GPUS[device]
