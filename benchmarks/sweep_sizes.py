"""Benchmark of statistics on small matrices of a Hopper GPU: kernels in CUDA C++ against those in Triton.

The results choose `MIN_CELLS` of `clearhead.ops.hopper.sweep` and `clearhead.ops.hopper.topk`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch

from clearhead import Causal, attention
from clearhead.ops.hopper import sweep, topk
from gpu_timing import Row, inputs, milliseconds, row
from measuring import RESULTS, write

SHAPES = [(1, 32, 512), (8, 16, 512), (1, 32, 1024), (1, 32, 2048), (4, 32, 2048), (1, 32, 4096), (1, 4, 8192)]
ALWAYS, NEVER = 0, 2**63
TOP = 16


def compare(batch: int, heads: int, n: int, causal: bool) -> Iterator[Row]:
    query, key, value = inputs(n, batch, heads, grad=False)
    _, weights = attention(query, key, value, mask=Causal() if causal else None, return_weights=True)

    def observe(least: int) -> None:
        sweep.MIN_CELLS = least
        weights.observe(entropy=True, received=True, distance=True)

    def find_largest(least: int) -> None:
        topk.MIN_CELLS = least
        weights.topk(TOP)

    power = (batch * heads * n * n).bit_length() - 1
    kind = f"{'causal' if causal else 'plain'}, {batch} × {heads} heads, 2^{power} cells"
    for name, call in (("sums", observe), (f"top {TOP}", find_largest)):
        times = milliseconds({"CUDA C++": lambda call=call: call(ALWAYS), "Triton": lambda call=call: call(NEVER)})
        yield row(f"{name}, {kind}", n, times["CUDA C++"], "Triton", times["Triton"], "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rows = [found for shape in SHAPES for causal in (False, True) for found in compare(*shape, causal)]
    write("gpu-sweep-sizes", "One H200, bf16: statistics of small matrices", rows, arguments.output)


if __name__ == "__main__":
    main()
