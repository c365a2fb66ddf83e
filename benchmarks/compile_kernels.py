"""Compile every Triton kernel for GPUs of six architectures, on any machine, with the tiles that clearhead chooses.

The shared memory that the compiler reports is compared with the limit of the architecture. In the common cases
(bfloat16, widths 64 and 128, no mask or causal), the bytes of spilled registers are reported as well. The grid has no
float16, no values of another width than keys, and no heatmaps fused with statistics.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import torch

from measuring import RESULTS, write

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.cross_compiler import (  # pyright: ignore[reportMissingImports]
    COMPILED_KERNELS,
    FEATURES,
    SHARED_MEMORY,
    CompiledKernel,
    compile_kernel,
    spilled_bytes,
)

Case = tuple[CompiledKernel, int, torch.dtype, int, str]
FEATURES_OF_WIDTH = {64: ("plain", "causal"), 128: FEATURES, 256: ("causal", "everything")}
IDENTITY = ("function", "sm", "dtype", "width", "feature")
FEATURES_OF_KERNEL = {"backward_bias": ("causal and bias", "everything"), "paged_scores": ("plain", "everything")}
COMMON_WIDTHS, COMMON_FEATURES = (64, 128), ("plain", "causal")


def grid(kernels: list[CompiledKernel], architectures: list[int]) -> list[Case]:
    """Return all cases: most features at width 128, where kernels are fastest and tiles are largest."""
    half = [(torch.bfloat16, dim, feature) for dim, features in FEATURES_OF_WIDTH.items() for feature in features]
    settings = [*half, (torch.float32, 128, "everything")]
    return [
        (kernel, architecture, *setting)
        for kernel, architecture, setting in itertools.product(kernels, architectures, settings)
        if setting[2] in FEATURES_OF_KERNEL.get(kernel, FEATURES)
    ]


def compile_case(case: Case) -> list[dict[str, object]]:
    """Return a row per function that was compiled with a tile; the last row of a function is the one that is used."""
    kernel, architecture, dtype, dim, feature = case
    common = dtype == torch.bfloat16 and dim in COMMON_WIDTHS and feature in COMMON_FEATURES
    return [
        {
            "kernel": kernel,
            "function": compilation.function,
            "sm": architecture,
            "dtype": str(dtype).removeprefix("torch."),
            "width": dim,
            "feature": feature,
            "tile": " × ".join(map(str, compilation.tile)),
            "shared": compilation.shared,
            "limit": SHARED_MEMORY[architecture],
            "fits": compilation.fits,
            "spilled": spilled_bytes(compilation.ptx, architecture) if common and compilation.fits else "",
        }
        for compilation in compile_kernel(kernel, architecture, dtype, dim, feature)
        if compilation.tile[0]  # helpers without a tile use almost no shared memory
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for the JSON file and the table")
    parser.add_argument("--processes", type=int, default=2, help="number of processes")
    parser.add_argument("--architectures", type=int, nargs="+", choices=SHARED_MEMORY, default=list(SHARED_MEMORY))
    parser.add_argument("--kernels", nargs="+", choices=COMPILED_KERNELS, default=list(COMPILED_KERNELS))
    arguments = parser.parse_args()
    cases = grid(arguments.kernels, arguments.architectures)
    rows: list[dict[str, object]] = []
    with ProcessPoolExecutor(arguments.processes, get_context("spawn")) as pool:
        for done, job in enumerate(as_completed([pool.submit(compile_case, case) for case in cases]), 1):
            rows += job.result()
            print(f"\r{done} of {len(cases)}", end="", file=sys.stderr, flush=True)
    rows.sort(key=lambda row: [str(row[column]) for column in ("sm", "kernel", "dtype", "width", "feature")])
    used = {tuple(row[column] for column in IDENTITY): row for row in rows}  # the last compilation of each
    spilling = sum(bool(row["spilled"]) for row in used.values())
    failed = sum(not row["fits"] for row in used.values())
    repeated = len(rows) - len(used)
    title = (
        f"{len(rows)} compilations: {repeated} repeated with a smaller tile, {failed} kernels without a tile that fits,"
        f" {spilling} common kernels that spill registers"
    )
    part = "" if len(arguments.kernels) == len(COMPILED_KERNELS) else f"-{arguments.kernels[0]}"
    write(f"triton-compilations{part}", title, rows, arguments.output)


if __name__ == "__main__":
    main()
