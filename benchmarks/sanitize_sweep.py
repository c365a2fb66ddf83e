"""A few small statistics by the kernel for Hopper GPUs, to run under compute-sanitizer.

compute-sanitizer --tool memcheck --report-api-errors no python benchmarks/sanitize_sweep.py
compute-sanitizer --tool racecheck python benchmarks/sanitize_sweep.py
"""

from __future__ import annotations

import torch

from clearhead import Causal, Window
from clearhead.ops.arguments import build_call
from clearhead.ops.hopper import sweep
from clearhead.ops.masks import Mask
from clearhead.ops.statistics import PoolSpec, StatisticsRequest
from clearhead.ops.triton.statistics import compute_statistics

PROBLEMS: list[tuple[int, int, Mask | None, PoolSpec | None]] = [  # queries, keys, mask, heatmap
    (200, 333, None, None),
    (333, 200, Causal(), None),
    (512, 512, Window(50, 20), PoolSpec(32, 32, "mean")),
    (512, 512, Causal(), PoolSpec(2, 4, "max")),
]


def main() -> None:
    sweep.MIN_CELLS = 0
    for q_len, kv_len, mask, pool in PROBLEMS:
        query = torch.randn(2, 4, q_len, 128, device="cuda", dtype=torch.bfloat16)
        key = torch.randn(2, 2, kv_len, 128, device="cuda", dtype=torch.bfloat16)
        lse = torch.full((2, 4, q_len), 5.0, device="cuda")
        request = StatisticsRequest(entropy=True, received=True, distance=True, pool=pool)
        found = compute_statistics(build_call(query, key, key, mask=mask), lse, request)
        print(q_len, kv_len, mask, float(found.received.sum()))


if __name__ == "__main__":
    main()
