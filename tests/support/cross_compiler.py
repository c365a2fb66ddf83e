"""Compilation of the Triton kernels for GPUs that this machine does not have.

The library's own code runs on CPU tensors, but a launch only compiles. A kernel that needs more shared memory than the
architecture has raises the same error as on the device, so the choice of a smaller tile is exercised too.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # today's default, set so that Triton does not warn about it

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.runtime.errors import OutOfResources
from triton.runtime.jit import JITFunction

from clearhead import Causal, Dense
from clearhead.ops import gpu
from clearhead.ops._custom_op import Results
from clearhead.ops.arguments import build_call
from clearhead.ops.call import AttentionCall
from clearhead.ops.statistics import PoolSpec, StatisticsRequest
from clearhead.ops.triton import (
    backward,
    bias_grad,
    decode,
    divergence,
    forward,
    launch,
    paged_scores,
    pooling,
    products,
    score_rows,
    statistics,
    tiles,
    topk,
)
from clearhead.ops.triton.cell_gradients import NO_TERMS, CellTerms
from clearhead.ops.triton.tiles import KERNELS, Kernel

CompiledKernel = Kernel | Literal["paged_scores"]
COMPILED_KERNELS: tuple[CompiledKernel, ...] = (*KERNELS, "paged_scores")
SHARED_MEMORY = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}  # bytes per block
FEATURES = ("plain", "causal", "dense", "causal and bias", "everything")
LENGTH = 256


@dataclass(frozen=True)
class Compilation:
    """One compiled kernel."""

    function: str
    tile: tuple[int, ...]  # queries, keys, warps, stages
    shared: int  # bytes
    fits: bool
    ptx: str


class CompiledOnly:
    """Stand-in for a compiled kernel; launching it again does nothing."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *arguments: None


class CompileOnlyDriver:
    """Stand-in for Triton's driver that reports an architecture, also as the number of the device."""

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
    run, before, active = JITFunction.run, gpu.gpu_of(cpu), triton.runtime.driver._active

    def compile_only(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel: Any = run(self, *args, grid=grid, warmup=True, **kwargs)
        shared = kernel.metadata.shared
        tile = tuple(kwargs.get(name, 0) for name in ("BLOCK_Q", "BLOCK_K", "num_warps", "num_stages"))
        compilations.append(Compilation(self.__name__, tile, shared, shared <= limit, kernel.asm["ptx"]))
        if shared > limit:
            raise OutOfResources(shared, limit, "shared memory")
        return CompiledOnly()

    triton.runtime.driver.set_active(CompileOnlyDriver(architecture))  # pyright: ignore[reportArgumentType]
    JITFunction.run = compile_only
    gpu._GPUS[cpu] = gpu.GPU(divmod(architecture, 10), limit)
    tiles._CHOSEN.clear()
    launch._LAUNCHES.clear()
    launch._GRID_LAUNCHES.clear()
    try:
        yield compilations
    finally:
        JITFunction.run = run
        gpu._GPUS[cpu] = before
        tiles._CHOSEN.clear()
        launch._LAUNCHES.clear()
        launch._GRID_LAUNCHES.clear()
        triton.runtime.driver._active = active


def compile_kernel(
    kernel: CompiledKernel, architecture: int, dtype: torch.dtype, dim: int, feature: str
) -> list[Compilation]:
    """Compile a kernel with the tile that the library chooses; the last compilation of a function is the one used."""
    if kernel == "paged_scores":
        with compiling_for(architecture) as compilations:
            _launch_paged_scores(dtype, dim, feature)
        return compilations
    call = _call(kernel, dtype, dim, feature)
    with compiling_for(architecture) as compilations:
        _launch(kernel, call, feature)
    return compilations


def _launch_paged_scores(dtype: torch.dtype, dim: int, feature: str) -> None:
    """Launch with keys and values of a block in the same rows, as vLLM stores them; then the softmax of the scores."""
    query, blocks = torch.empty(3, 8, dim, dtype=dtype), torch.empty(LENGTH, 2, 16, 2 * dim, dtype=dtype)
    table, lengths = torch.zeros(3, LENGTH // 16, dtype=torch.int32), torch.full((3,), LENGTH)
    options: dict[str, tuple[Tensor | None, float | None, Tensor | None]] = {
        "plain": (None, None, None),
        "everything": (torch.zeros_like(lengths), 3.0, torch.zeros(8)),
    }
    first_keys, softcap, slopes = options[feature]
    scores = paged_scores.paged_scores(query, blocks[..., :dim], table, lengths, first_keys, 1.0, softcap, slopes)
    score_rows.softmax_in_place(scores, lengths, slopes)


def _call(kernel: Kernel, dtype: torch.dtype, dim: int, feature: str) -> AttentionCall:
    q_len = 8 if kernel == "decode" else LENGTH
    query, key = torch.empty(1, 4, q_len, dim, dtype=dtype), torch.empty(1, 2, LENGTH, dim, dtype=dtype)
    dense = Dense(torch.ones(1, 1, q_len, LENGTH, dtype=torch.bool))
    bias = torch.zeros(1, 4, q_len, LENGTH, dtype=dtype)
    if kernel == "backward_bias" and feature not in ("causal and bias", "everything"):
        raise ValueError(f"feature is {feature!r}; expected one with a bias")
    options = {
        "plain": {},
        "causal": {"mask": Causal()},
        "dense": {"mask": dense},
        "causal and bias": {"mask": Causal(), "bias": bias},
        "everything": {
            "mask": dense & Causal(), "bias": bias, "softcap": 3.0, "sinks": torch.zeros(4), "dropout": 0.1
        },
    }[feature]  # fmt: skip
    return build_call(query, key, key, **options)


def _launch(kernel: Kernel, call: AttentionCall, feature: str) -> None:
    lse = torch.zeros(call.query.shape[:3])
    if kernel == "forward":
        forward.forward(call)
    elif kernel == "decode":
        decode.decode(call)
    elif kernel in ("backward_query", "backward_key", "backward_bias"):
        terms = {"everything": CellTerms(lse, lse), "dense": CellTerms(log=lse)}.get(feature, NO_TERMS)
        inputs = backward.BackwardInputs.from_call(call, _results(call, lse), terms)
        if kernel == "backward_query":
            backward.grad_of_query(inputs)
        elif kernel == "backward_key":
            backward.grad_of_key(inputs)
        else:
            bias_grad.grad_of_bias(inputs)
    elif kernel in ("observe_rows", "observe_columns"):
        request = StatisticsRequest(entropy=True, distance=True, received=kernel == "observe_columns")
        statistics.compute_statistics(call, lse, request)
    elif kernel == "pool":
        pooling.pool(call, lse, slice(0, call.shape[2]), slice(0, LENGTH), PoolSpec(8, 8, "mean"))
    elif kernel == "top":
        topk.top_weights(call, lse, 8)
    elif kernel == "transposed_product":
        products.transposed_product(call, lse, torch.empty_like(call.query))
    elif kernel == "mass":
        products.mass(call, lse, torch.zeros(1, LENGTH, 8))
    else:
        _launch_divergence(kernel, call, lse, 4 if feature == "plain" else 1)


def _launch_divergence(kernel: Kernel, call: AttentionCall, lse: Tensor, groups: int) -> None:
    teacher = divergence.Teacher(call.without_dropout(), lse, groups)
    student = divergence.Student(replace(call.without_dropout(), bias=None, softcap=None, sinks=None), lse)
    if kernel == "divergence":
        divergence.divergence(teacher, student, True)
    else:
        divergence.key_gradient(teacher, student, lse)


def _results(call: AttentionCall, lse: Tensor) -> Results:
    output = torch.zeros_like(call.query)
    return Results(output, lse, output, lse)


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


def main() -> None:
    """Compile the cases ARCHITECTURE:KERNEL:DTYPE:WIDTH:FEATURE of the command line; print a JSON line for each."""
    for case in sys.argv[1:]:
        number, kernel, dtype, dim, feature = case.split(":")
        architecture = int(number)
        compilations = compile_kernel(kernel, architecture, getattr(torch, dtype), int(dim), feature)  # pyright: ignore
        rows = [
            (compilation.function, compilation.fits, spilled_bytes(compilation.ptx, architecture))
            for compilation in compilations
        ]
        print(json.dumps({"case": case, "compilations": rows}), flush=True)


if __name__ == "__main__":
    main()
