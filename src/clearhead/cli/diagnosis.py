"""Diagnosis of this machine: versions, devices, and the calls that each backend supports."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import dataclass

import torch

from clearhead._utils.extras import EXTRAS, missing_packages
from clearhead.ops import dispatch
from clearhead.ops.arguments import build_call
from clearhead.ops.call import AttentionCall
from clearhead.ops.gpu import shared_memory_of
from clearhead.ops.hopper import support
from clearhead.ops.masks import Causal, Dense, Padding, Window
from clearhead.ops.native import functions

REPORTED_PACKAGES = ("clearhead", "torch", "triton", "numpy", "safetensors", "jaxtyping")


@dataclass(frozen=True)
class BackendCase:
    """One kind of attention call, the backends that support it (fastest first), and why the others do not."""

    name: str
    device: str
    able: list[str]
    refusals: dict[str, list[str]]


@dataclass(frozen=True)
class TileChoice:
    """Tile of a Triton kernel for one kind of call. It is smaller than the preferred tile if that one does not fit."""

    call: str
    kernel: str
    tile: str
    preferred: str


@dataclass(frozen=True)
class CompiledKernels:
    """Availability on this machine of kernels in C++ or CUDA C++, which are compiled when they are first needed."""

    available: bool
    reasons: list[str]


@dataclass(frozen=True)
class Extra:
    """An optional extra of clearhead, and those of its packages that are missing."""

    installed: bool
    missing: list[str]


@dataclass(frozen=True)
class Diagnosis:
    """Versions, devices, backend support and installed extras of this machine."""

    versions: dict[str, str]
    devices: list[str]
    cases: list[BackendCase]
    tiles: list[TileChoice]
    native: CompiledKernels
    hopper: CompiledKernels
    extras: dict[str, Extra]


def diagnose() -> Diagnosis:
    """Diagnose this machine without running a kernel."""
    return Diagnosis(
        {"python": platform.python_version(), **{name: _version(name) for name in REPORTED_PACKAGES}},
        _devices(),
        [case for device in _device_names() for case in _examine(device)],
        [choice for name, call in _wide_calls().items() for choice in tile_choices(name, call)],
        cpu_functions(),
        hopper_kernels(_example_calls(_device_names()[-1])["plain"]),
        {name: Extra(not missing_packages(name), missing_packages(name)) for name in EXTRAS},
    )


def _examine(device: str) -> list[BackendCase]:
    calls = _example_calls(device)
    cases = [_case(name, call) for name, call in calls.items()]
    return [*cases, _case("statistics and pooling", calls["plain"], "statistics")]


def _case(name: str, call: AttentionCall, task: dispatch.Task = "output") -> BackendCase:
    reasons_by_backend = dispatch.explain_choice(call, task)
    return BackendCase(
        name,
        str(call.query.device.type),
        [backend for backend, reasons in reasons_by_backend.items() if not reasons],
        {backend: reasons for backend, reasons in reasons_by_backend.items() if reasons},
    )


def tile_choices(name: str, call: AttentionCall) -> list[TileChoice]:
    """Return the tile of each Triton kernel that computes a call, its gradients and its statistics."""
    from clearhead.ops.triton.tiles import KERNELS, TileProblem, tile_for  # triton may not be installed

    problems = [TileProblem.from_call(kernel, call, call.shape[2]) for kernel in KERNELS]
    return [
        TileChoice(name, problem.kernel, str(tile_for(problem)), str(problem.preferred()))
        for problem in problems
        if problem.kernel != "backward_bias" or call.tensor_bias is not None
    ]


def cpu_functions() -> CompiledKernels:
    """Return whether the functions in C++ for statistics on the CPU can be compiled, and the reasons if not."""
    reasons = functions.unavailable_reasons()
    return CompiledKernels(not reasons, reasons)


def hopper_kernels(call: AttentionCall) -> CompiledKernels:
    """Return whether the kernels in CUDA C++ support long calls like this one, and the reasons if not."""
    reasons = list(map(str, dispatch.BACKENDS["triton"].unsupported_reasons(call, "statistics")))
    reasons = reasons or support.unsupported_reasons(call, min_cells=0)
    return CompiledKernels(not reasons, reasons)


def _wide_calls() -> dict[str, AttentionCall]:
    """Return calls on the GPU that load much per tile (one head of 128, 512 tokens); none if Triton does not run."""
    if not torch.cuda.is_available():
        return {}
    x = torch.empty((1, 1, 512, 128), dtype=torch.bfloat16, device="cuda")
    calls = {
        "causal": build_call(x, x, x, mask=Causal()),
        "dense mask and bias": build_call(
            x, x, x, mask=Dense(torch.ones(512, 512, dtype=torch.bool, device="cuda")), bias=x.new_empty(512, 512)
        ),
    }
    return {} if dispatch.BACKENDS["triton"].unsupported_reasons(calls["causal"]) else calls


def _example_calls(device: str) -> dict[str, AttentionCall]:
    """Return one call for each feature that only some backends support (12 heads of 64, 1,024 tokens)."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    x = torch.empty((2, 12, 1024, 64), dtype=dtype, device=device)
    bias = torch.empty((12, 1024, 1024), dtype=dtype, device=device)
    return {
        "plain": build_call(x, x, x),
        "causal": build_call(x, x, x, mask=Causal()),
        "padded": build_call(x, x, x, mask=Padding([1024, 700])),
        "windowed": build_call(x, x, x, mask=Window(before=255)),
        "biased": build_call(x, x, x, bias=bias),
        "softcap and sinks": build_call(x, x, x, softcap=30.0, sinks=torch.empty(12, device=device)),
        "dropout": build_call(x, x, x, dropout=0.1),
    }


def _device_names() -> list[str]:
    return ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def _devices() -> list[str]:
    cpu = f"cpu: {platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    devices = [f"{cpu}, {torch.backends.cpu.get_cpu_capability()}"]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        memory = f"{properties.total_memory / 2**30:.0f} GiB"
        capability = f"compute capability {properties.major}.{properties.minor}"
        shared = f"{shared_memory_of(properties):,} bytes of shared memory per block"
        devices.append(f"cuda:{index}: {properties.name}, {memory}, {capability}, {shared}")
    return devices


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
