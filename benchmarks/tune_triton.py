"""Time the Triton kernels with many tile sizes on this GPU and print the best per width, for `ops/triton/tiles.py`.

Kernels are first compiled in parallel. One process then times them with a causal mask on random data.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from triton.runtime.errors import OutOfResources
from triton.testing import do_bench

from clearhead._utils.files import write_text
from clearhead.ops._custom_op import Results
from clearhead.ops.arguments import build_call
from clearhead.ops.masks import Causal
from clearhead.ops.statistics import StatisticsRequest
from clearhead.ops.triton import backward, forward, statistics
from clearhead.ops.triton.config import TileConfig
from clearhead.ops.triton.tiles import Kernel
from measuring import machine

HEADS = 32
CHOICES: dict[Kernel, list[TileConfig]] = {
    "forward": [TileConfig(*t) for t in itertools.product((64, 128), (32, 64, 128), (4, 8), (2, 3, 4))],
    "backward_query": [TileConfig(*t) for t in itertools.product((64, 128), (32, 64, 128), (4, 8), (2, 3))],
    "backward_key": [TileConfig(*t) for t in itertools.product((32, 64, 128), (64, 128), (4, 8), (2, 3))],
    "observe_rows": [TileConfig(*t) for t in itertools.product((64, 128), (64, 128), (4, 8), (2, 3))],
    "observe_columns": [TileConfig(*t) for t in itertools.product((64, 128), (64, 128), (4, 8), (2, 3))],
}


def run(kernel: Kernel, tile: TileConfig, dtype: torch.dtype, dim: int, n: int, once: bool = False) -> float:
    """Return the time in milliseconds, or infinity if the tile exceeds the resources of the GPU."""
    torch.manual_seed(0)
    query, key, value, grad = (torch.randn(1, HEADS, n, dim, device="cuda").to(dtype) for _ in range(4))
    call = build_call(query, key, value, mask=Causal())
    lse = torch.full(query.shape[:3], 10.0, device="cuda")
    backward_inputs = backward.BackwardInputs.from_call(
        call, Results(torch.randn_like(query), lse, grad, torch.zeros_like(lse))
    )

    backward.grad_of_query(backward_inputs)  # prepares rows for the kernel of keys

    def observe(received: bool) -> Callable[[], object]:
        request = StatisticsRequest(entropy=True, received=received, distance=True)
        return lambda: statistics.compute_statistics(call, lse, request, tile=tile)

    part = {
        "forward": lambda: forward.forward(call, tile),
        "backward_query": lambda: backward.grad_of_query(backward_inputs, tile),
        "backward_key": lambda: backward.grad_of_key(backward_inputs, tile),
        "observe_rows": observe(received=False),
        "observe_columns": observe(received=True),
    }[kernel]
    try:
        part()
    except OutOfResources:
        return float("inf")
    return 0.0 if once else float(do_bench(part, warmup=20, rep=60, return_mode="median"))  # pyright: ignore[reportArgumentType]


def tune(
    kernels: list[Kernel], n: int, dims: list[int], dtypes: list[torch.dtype]
) -> dict[str, list[tuple[float, TileConfig]]]:
    """Return the tiles that fit for each kernel, dtype and width, fastest first."""
    cases: list[tuple[Kernel, torch.dtype, int]] = [
        (kernel, dtype, dim) for kernel in kernels for dtype in dtypes for dim in dims
    ]
    with ProcessPoolExecutor(14, get_context("spawn")) as pool:  # fills the on-disk cache
        jobs = [pool.submit(run, k, tile, dtype, dim, 256, True) for k, dtype, dim in cases for tile in CHOICES[k]]
        for job in jobs:
            job.result()
    tiles = {}
    for kernel, dtype, dim in cases:
        times = sorted((run(kernel, tile, dtype, dim, n), tile) for tile in CHOICES[kernel])
        tiles[f"{kernel} {str(dtype).removeprefix('torch.')} {dim}"] = [
            pair for pair in times if pair[0] < float("inf")
        ]
    return tiles


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="JSON file for all times")
    parser.add_argument("--kernels", nargs="+", default=list(CHOICES))
    parser.add_argument("--n", type=int, default=8192)
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    arguments = parser.parse_args()
    found = tune(arguments.kernels, arguments.n, arguments.dims, [getattr(torch, name) for name in arguments.dtypes])
    tiles = {
        name: [{"ms": round(milliseconds, 4), **tile._asdict()} for milliseconds, tile in times]
        for name, times in found.items()
    }
    setting = f"causal, n {arguments.n}, {HEADS} heads"
    write_text(
        arguments.output, json.dumps({"machine": machine(), "setting": setting, "tiles": tiles}, indent=1) + "\n"
    )
    for name, times in found.items():
        print(name, *(f"{tuple(tile)} {milliseconds:.3f}" for milliseconds, tile in times[:3]), sep="  ")


if __name__ == "__main__":
    main()
