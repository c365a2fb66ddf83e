"""Benchmark of the forward kernel for Hopper GPUs by size, which chooses its `MIN_CELLS` and the order of backends.

Masked calls are compared with the kernel in Triton, plain and causal ones with cuDNN. Neither computes gradients.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend

from clearhead import Causal, Documents, Window, attention
from clearhead.ops.hopper import forward
from clearhead.ops.masks import Mask
from gpu_timing import Row, fused, inputs, milliseconds, row
from measuring import RESULTS, write

SHAPES = [
    (1, 32, 512), (8, 32, 512), (1, 32, 1024), (4, 32, 1024), (1, 32, 2048), (4, 32, 2048), (1, 32, 4096),
    (2, 32, 4096), (1, 32, 8192), (1, 8, 16384), (1, 32, 32768), (1, 4, 131072),
]  # fmt: skip
ALWAYS, NEVER = 0, 2**63


def compare(batch: int, heads: int, n: int, dim: int) -> Iterator[Row]:
    tensors = inputs(n, batch, heads, dim, grad=False)
    masks: dict[str, Mask | None] = {
        "plain": None,
        "causal": Causal(),
        "causal window": Window(n // 8 - 1, 0),
        "eight causal documents": Causal() & Documents([n // 8] * 8),
    }

    def run(mask: Mask | None, least: int) -> None:
        forward.MIN_CELLS = dict.fromkeys(forward.MIN_CELLS, least)
        attention(*tensors, mask=mask, backend="triton")

    for name, mask in masks.items():
        calls: dict[str, Callable[[], object]] = {"ours": lambda mask=mask: run(mask, ALWAYS)}
        peer = "Triton"
        if mask is None or isinstance(mask, Causal):
            peer = "cuDNN"
            calls[peer] = fused(SDPBackend.CUDNN_ATTENTION, tensors, mask is not None)
        else:
            calls[peer] = lambda mask=mask: run(mask, NEVER)
        times = milliseconds(calls)
        power = (batch * heads * n * n).bit_length() - 1
        yield row(f"{name}, {batch} × {heads} × {dim}, 2^{power} cells", n, times["ours"], peer, times[peer], "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rows = [row for dim in (128, 64) for shape in SHAPES for row in compare(*shape, dim)]
    write("gpu-forward-sizes", "One H200, bf16: the forward kernel for Hopper GPUs by size", rows, arguments.output)


if __name__ == "__main__":
    main()
