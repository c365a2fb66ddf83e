"""Benchmark of the two statistics kernels on small matrices of a Hopper GPU, which chooses `MIN_CELLS` of the sweep."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from clearhead import Causal, attention
from clearhead.ops.hopper import sweep
from gpu_timing import Row, inputs, milliseconds, row
from measuring import RESULTS, write

SHAPES = [(1, 32, 512), (8, 16, 512), (1, 32, 1024), (1, 32, 2048), (4, 32, 2048), (1, 32, 4096), (1, 4, 8192)]
ALWAYS, NEVER = 0, 2**63


def compare(batch: int, heads: int, n: int, causal: bool) -> Row:
    query, key, value = inputs(n, batch, heads, grad=False)
    _, weights = attention(query, key, value, mask=Causal() if causal else None, return_weights=True)

    def observe(least: int) -> None:
        sweep.MIN_CELLS = least
        weights.observe(entropy=True, received=True, distance=True)

    times = milliseconds({"sweep": lambda: observe(ALWAYS), "Triton": lambda: observe(NEVER)})
    power = (batch * heads * n * n).bit_length() - 1
    case = f"{'causal' if causal else 'plain'}, {batch} × {heads} heads, 2^{power} cells"
    return row(case, n, times["sweep"], "Triton", times["Triton"], "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rows = [compare(*shape, causal) for shape in SHAPES for causal in (False, True)]
    write("gpu-sweep-sizes", "One H200, bf16: statistics of small matrices", rows, arguments.output)


if __name__ == "__main__":
    main()
