"""A few small calls of the kernels for Hopper GPUs, to run under compute-sanitizer.

compute-sanitizer --tool memcheck --report-api-errors no python benchmarks/sanitize_hopper.py
compute-sanitizer --tool racecheck python benchmarks/sanitize_hopper.py
"""

from __future__ import annotations

import torch

from clearhead import Causal, Documents, Prefix, Window
from clearhead.ops.arguments import build_call
from clearhead.ops.hopper import forward, query_blocks, support, sweep, topk
from clearhead.ops.masks import Mask
from clearhead.ops.statistics import PoolSpec, StatisticsRequest
from clearhead.ops.triton.statistics import compute_statistics

PROBLEMS: list[tuple[int, int, int, Mask | None, PoolSpec | None]] = [  # width, queries, keys, mask, heatmap
    (128, 200, 333, None, None),
    (128, 333, 200, Causal(), None),
    (64, 333, 333, (Causal() & Window(20)) | Prefix(7), None),
    (64, 300, 300, Causal() & Documents([100, 130, 70]), None),
    (128, 512, 512, Window(50, 20), PoolSpec(32, 32, "mean")),
    (128, 512, 512, Causal(), PoolSpec(2, 4, "max")),
]


def main() -> None:
    sweep.MIN_CELLS, topk.MIN_CELLS, forward.MIN_CELLS = 0, 0, {}
    support.processor_count = lambda device: 3  # thread blocks process several items
    for width, q_len, kv_len, mask, pool in PROBLEMS:
        query = torch.randn(2, 4, q_len, width, device="cuda", dtype=torch.bfloat16)
        key = torch.randn(2, 2, kv_len, width, device="cuda", dtype=torch.bfloat16)
        key[:, :, query_blocks.TILE_KEYS :] *= 16  # sums of some rows overflow, and their blocks are repeated
        call = build_call(query, key, key, mask=mask)
        output, lse = forward.forward(call)
        request = StatisticsRequest(entropy=True, received=True, distance=True, pool=pool)
        found = compute_statistics(call, lse, request)
        top = topk.top_weights(call, lse, 16)
        print(width, q_len, kv_len, mask, float(output.sum()), float(found.received.sum()), top is not None)


if __name__ == "__main__":
    main()
