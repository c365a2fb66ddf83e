"""Compilation of the Triton kernels for GPUs that this machine does not have.

The library's own host code runs on CPU tensors, but a launch only compiles. A kernel that needs more shared memory than
the architecture has raises the same error as on the device, so the library's choice of smaller tiles is exercised too.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # today's default, set so that Triton does not warn about it

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.runtime.errors import OutOfResources
from triton.runtime.jit import JITFunction

from clearhead.ops import _gpu
from clearhead.ops.triton import tiles

SHARED_MEMORY = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}  # bytes per block


@dataclass(frozen=True)
class Compilation:
    """One compiled kernel."""

    kernel: str
    queries: int
    keys: int
    warps: int
    stages: int
    shared: int  # bytes
    fits: bool
    ptx: str


class CompileOnlyDriver:
    """Stand-in for Triton's driver that reports an architecture; device numbers are architectures."""

    def __init__(self, architecture: int) -> None:
        self.architecture = architecture

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.architecture, 32)

    def get_current_device(self) -> int:
        return self.architecture

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def compiling_for(architecture: int) -> Iterator[list[Compilation]]:
    """Compile kernels for an architecture instead of launching them; yield the list that collects them.

    Calls on CPU tensors then choose the tiles of that architecture.
    """
    compilations: list[Compilation] = []
    limit, cpu = SHARED_MEMORY[architecture], torch.device("cpu")
    run, gpu, active = JITFunction.run, _gpu.gpu_of(cpu), triton.runtime.driver._active  # pyright: ignore

    def compile_only(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        shared = kernel.metadata.shared
        tile = (kwargs.get(name, 0) for name in ("BLOCK_Q", "BLOCK_K", "num_warps", "num_stages"))
        compilations.append(Compilation(self.__name__, *tile, shared, shared <= limit, kernel.asm["ptx"]))
        if shared > limit:
            raise OutOfResources(shared, limit, "shared memory")
        return kernel

    triton.runtime.driver.set_active(CompileOnlyDriver(architecture))  # pyright: ignore[reportArgumentType]
    JITFunction.run = compile_only
    _gpu._GPUS[cpu] = _gpu.GPU(divmod(architecture, 10), limit)
    tiles._CHOSEN.clear()
    try:
        yield compilations
    finally:
        JITFunction.run = run
        _gpu._GPUS[cpu] = gpu
        tiles._CHOSEN.clear()
        triton.runtime.driver._active = active  # pyright: ignore


def spilled_bytes(ptx: str, architecture: int) -> int:
    """Return the bytes that a kernel spills from registers, as reported by the assembler that Triton brings."""
    target = re.search(r"^\.target (sm_\w+)", ptx, re.MULTILINE)
    assert target is not None
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        command = [
            get_ptxas(architecture).path,
            "-v",
            f"--gpu-name={target[1]}",
            source,
            "-o",
            source.with_suffix(".cubin"),
        ]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return sum(map(int, re.findall(r"(\d+) bytes spill stores", report)))
