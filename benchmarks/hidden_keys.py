"""Benchmark of padded batches on a GPU: torch's memory-efficient kernel with a bias against Triton, which skips keys.

Forward and backward. `MAX_HIDDEN_KEY_LENGTH` in clearhead/ops/sdpa.py follows from the results.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from clearhead import Padding, attention
from clearhead.ops.masks import Mask
from measuring import RESULTS, write

TOKENS, HEADS, DIM = 2**15, 8, 32
ROUNDS, STEPS = 7, 20


def both_passes(tensors: list[Tensor], mask: Mask, backend: str) -> None:
    output = attention(*tensors, mask=mask, backend=backend)
    output.backward(output.detach())


def microseconds(step: Callable[[], object]) -> float:
    """Return the median time of a step, over several rounds."""
    taken = []
    for _ in range(ROUNDS + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        taken.append(1e6 * (time.perf_counter() - start) / STEPS)
    return statistics.median(taken[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rows: list[dict[str, object]] = []
    for n in (32, 64, 128, 256, 512):
        batch = TOKENS // n
        shape = (batch, HEADS, n, DIM)
        tensors = [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
        mask = Padding(torch.randint(n // 2, n + 1, (batch,)))
        times = {name: microseconds(partial(both_passes, tensors, mask, name)) for name in ("sdpa", "triton")}
        faster = f"{times['triton'] / times['sdpa']:.2f}"
        rows.append({"n": n, **{name: f"{own:.0f} µs" for name, own in times.items()}, "sdpa is faster by": faster})
    title = f"Padded batches of {TOKENS:,} tokens, {HEADS} heads of {DIM}, bf16, forward and backward"
    write("gpu-hidden", title, rows, arguments.output)


if __name__ == "__main__":
    main()
