"""Kernels in CUDA C++: NVRTC compiles them when they are first needed, and the CUDA driver launches them.

`cuda.bindings` is installed with torch's CUDA builds for Linux.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from clearhead._utils.torch_internals import in_functorch_transform, is_traced

SOURCES = files("clearhead.ops.hopper")
HEADERS = ("wgmma.cuh", "query_blocks.cuh")
ARCHITECTURE = "sm_90a"
PANEL_COLUMNS = 64  # of two bytes: the width of the swizzle
UNAVAILABLE = {
    "CUDA_ERROR_INVALID_IMAGE",
    "CUDA_ERROR_INVALID_SOURCE",
    "CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
    "CUDA_ERROR_NO_BINARY_FOR_GPU",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
}


class DriverError(RuntimeError):
    """Error of the CUDA driver, before anything was launched."""


class UnavailableError(DriverError):
    """Error that every call on this machine would raise, such as one of NVRTC."""


def is_installed() -> bool:
    """Return whether the bindings of NVRTC and of the CUDA driver can be imported."""
    return _INSTALLED


def _find_bindings() -> bool:
    try:
        return importlib.util.find_spec("cuda.bindings") is not None
    except ModuleNotFoundError:  # there is no package `cuda`, or it is a module of another project
        return False


_INSTALLED = _find_bindings()


class Kernel:
    """A kernel that is compiled for one set of options.

    Args:
        name: name of the kernel, and of its source file without `.cu`.
        options: values of the preprocessor macros that the source expects.
    """

    def __init__(self, name: str, options: Mapping[str, int | str]) -> None:
        self.name = name
        self.cubin = compile_source(name, tuple(sorted(options.items())))
        self._functions: dict[int, Any] = {}

    def launch(self, blocks: int, threads: int, shared_bytes: int, arguments: Sequence[Any]) -> None:
        """Launch on the current device and stream.

        Args:
            blocks: number of thread blocks.
            threads: threads in each of them.
            shared_bytes: dynamic shared memory of each of them.
            arguments: tensor maps and ctypes structures or numbers, which are passed by value.
        """
        driver = _bindings("driver")
        device = torch.cuda.current_device()
        function = self._functions.get(device)
        if function is None:
            if torch.cuda.is_current_stream_capturing():  # loading would end the capture
                raise DriverError(f"kernel {self.name} is not loaded, and a CUDA graph is being captured")
            module = _call(driver.cuModuleLoadData, self.cubin)
            function = _call(driver.cuModuleGetFunction, module, self.name.encode())
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _call(driver.cuFuncSetAttribute, function, attribute, shared_bytes)
            self._functions[device] = function
        addresses = [
            argument.getPtr() if hasattr(argument, "getPtr") else ctypes.addressof(argument) for argument in arguments
        ]
        pointers = (ctypes.c_void_p * len(addresses))(*addresses)
        stream = torch.cuda.current_stream().cuda_stream
        _call(
            driver.cuLaunchKernel,
            function, blocks, 1, 1, threads, 1, 1, shared_bytes, stream, ctypes.addressof(pointers), 0,
        )  # fmt: skip


@functools.cache
def compiled_kernel(name: str, options: tuple[tuple[str, int | str], ...]) -> Kernel:
    """Return the kernel for a set of options, compiled once per process."""
    return Kernel(name, dict(options))


@functools.cache
def compile_source(name: str, options: tuple[tuple[str, int | str], ...]) -> bytes:
    """Return the machine code of a kernel.

    Raises:
        UnavailableError: NVRTC is missing or refuses the source; the message has the compiler's output.
    """
    nvrtc = _bindings("nvrtc")
    source, *headers = ((SOURCES / file).read_text(encoding="utf-8").encode() for file in (f"{name}.cu", *HEADERS))
    flags = [f"--gpu-architecture={ARCHITECTURE}", "--std=c++17", "--device-as-default-execution-space"]
    flags += [f'-D{macro}="{value}"' if isinstance(value, str) else f"-D{macro}={value}" for macro, value in options]
    header_names = [header.encode() for header in HEADERS]
    program = _call(nvrtc.nvrtcCreateProgram, source, f"{name}.cu".encode(), len(headers), headers, header_names)
    try:
        _call(nvrtc.nvrtcCompileProgram, program, len(flags), [flag.encode() for flag in flags])
        cubin = b" " * _call(nvrtc.nvrtcGetCUBINSize, program)
        _call(nvrtc.nvrtcGetCUBIN, program, cubin)
    except DriverError as error:
        log = b" " * _call(nvrtc.nvrtcGetProgramLogSize, program)
        _call(nvrtc.nvrtcGetProgramLog, program, log)
        raise UnavailableError(f"kernel {name} does not compile: {log.decode(errors='replace')}") from error
    finally:
        _call(nvrtc.nvrtcDestroyProgram, program)
    return cubin


def row_map(tensor: Tensor, rows: int) -> Any:
    """Return the tensor map from which a kernel loads boxes of some rows and 64 columns, with 0 beyond the last row.

    The tensor is `[batch, heads, length, width]` in half precision; `can_map` has checked it.
    """
    strides = _strides(tensor.shape, tensor.stride(), tensor.element_size())
    assert strides is not None
    return _map_at(tensor.data_ptr(), tensor.dtype, tensor.shape, strides, rows)


@functools.lru_cache(maxsize=1024)  # encoding one takes microseconds, and an allocator returns the same addresses again
def _map_at(address: int, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], rows: int) -> Any:
    driver = _bindings("driver")
    bfloat16 = dtype == torch.bfloat16
    types = driver.CUtensorMapDataType
    return _call(
        driver.cuTensorMapEncodeTiled,
        types.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 if bfloat16 else types.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        4,
        address,
        [driver.cuuint64_t(size) for size in reversed(shape)],
        [driver.cuuint64_t(stride * dtype.itemsize) for stride in reversed(strides)],
        [driver.cuuint32_t(size) for size in (PANEL_COLUMNS, rows, 1, 1)],
        [driver.cuuint32_t(1)] * 4,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )


def data_pointer(tensor: Tensor | None) -> int | None:
    """Return the address of a tensor, or None if there is no tensor."""
    return None if tensor is None else tensor.data_ptr()


def can_map(tensor: Tensor) -> bool:
    """Return whether the copy engine can load rows of a tensor: addresses and strides are multiples of 16 bytes.

    Placeholders, such as tensors under vmap, do not have an address.
    """
    if is_traced(tensor) or in_functorch_transform():
        return False
    return _strides(tensor.shape, tensor.stride(), tensor.element_size()) is not None and tensor.data_ptr() % 16 == 0


@functools.lru_cache(maxsize=1024)  # calls have few layouts, and the host is slower than the GPU on short texts
def _strides(shape: tuple[int, ...], strides: tuple[int, ...], element_size: int) -> tuple[int, ...] | None:
    """Return the strides of the first three axes in a tensor map, or None if the copy engine does not support them.

    The stride of an axis of one element is arbitrary, and becomes 16 bytes.
    """
    unit = 16 // element_size
    outer = tuple(stride if size > 1 else unit for stride, size in zip(strides[:3], shape, strict=False))
    aligned = min(outer) > 0 and not any(stride % unit for stride in outer)
    return outer if aligned and (strides[3] == 1 or shape[3] <= 1) else None


@functools.cache
def _bindings(name: str) -> Any:
    """Return a module of cuda.bindings, which loads a library of CUDA."""
    try:
        return importlib.import_module(f"cuda.bindings.{name}")
    except (ImportError, OSError, RuntimeError) as error:
        raise UnavailableError(f"cuda.bindings.{name} cannot be loaded: {error}") from error


def _call(function: Callable[..., tuple], *arguments: Any) -> Any:
    """Return the value of a function of the bindings, or raise its error."""
    try:
        status, *values = function(*arguments)
    except RuntimeError as error:  # the library does not have the function
        raise UnavailableError(str(error)) from error
    if status.value:
        error = UnavailableError if status.name in UNAVAILABLE else DriverError
        raise error(f"CUDA reports {status.name}")
    return values[0] if len(values) == 1 else None
