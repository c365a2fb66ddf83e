"""Benchmark of the functions in C++ for the CPU against torch functions: 12 heads of 64, float32, 2 threads."""

from __future__ import annotations

from collections.abc import Callable

import torch

from clearhead import AttentionWeights, Causal, Documents, Window, attention
from clearhead.ops.native import functions
from measuring import interleaved, write

HEADS, DIM, TOKENS, LONG = 12, 64, 4096, 8192
NEVER = 2**62  # cells


def with_threshold(cells: int, call: Callable[[], object]) -> Callable[[], object]:
    """Return a call that runs the functions in C++ from this many cells on."""

    def run() -> object:
        functions.MIN_CELLS = cells
        return call()

    return run


def statistics(weights: AttentionWeights, other: AttentionWeights) -> dict[str, Callable[[], object]]:
    rows = torch.randn(1, HEADS, weights.shape[2], DIM)
    return {
        "entropy": weights.entropy,
        "entropy, received, distance": lambda: weights.observe(entropy=True, received=True, distance=True),
        "the same and top 8": lambda: weights.observe(entropy=True, received=True, distance=True, top=8),
        "8 largest weights of each query": lambda: weights.topk(8),
        "64 largest weights of each query": lambda: weights.topk(64),
        "largest score of each query": weights.peak,
        "mass of two spans": lambda: weights.mass([(0, 10), (100, 200)]),
        "512 x 512 heatmap, mean": lambda: weights.pool(512, 512),
        "512 x 512 heatmap, max": lambda: weights.pool(512, 512, reduce="max"),
        "KL divergence of two matrices": lambda: weights.kl(other),
        "transposed product": lambda: weights.mT @ rows,
    }


def calls() -> dict[str, Callable[[], object]]:
    query, key, value = (torch.randn(1, HEADS, TOKENS, DIM) for _ in range(3))
    long = [torch.randn(1, HEADS, LONG, DIM) for _ in range(3)]
    documents = Documents([LONG // 8] * 8) & Causal()
    found: dict[str, Callable[[], object]] = {}
    for name, mask in (("plain", None), ("causal", Causal())):
        weights, other = (
            attention(q, k, value, mask=mask, return_weights=True)[1] for q, k in ((query, key), (key, query))
        )
        found |= {f"{name}: {case}": call for case, call in statistics(weights, other).items()}
    found["output, window of 1,024, 8,192 tokens"] = lambda: attention(*long, mask=Window(before=1023))
    found["output, 8 causal documents, 8,192 tokens"] = lambda: attention(*long, mask=documents)
    return found


def main() -> None:
    torch.set_num_threads(2)
    torch.manual_seed(0)
    threshold, rows = functions.MIN_CELLS, []
    with torch.no_grad():
        for case, call in calls().items():
            print(f"measuring: {case}", flush=True)
            variants = {"C++": with_threshold(threshold, call), "torch": with_threshold(NEVER, call)}
            times = interleaved(variants, rounds=8)
            rows.append(
                {
                    "case": case,
                    "torch, ms": round(times["torch"] * 1e3, 1),
                    "C++, ms": round(times["C++"] * 1e3, 1),
                    "C++ against torch": f"{times['torch'] / times['C++']:.2f} × its speed",
                }
            )
    write("native-cpu", "Functions in C++ against torch functions, 4,096 tokens", rows)


if __name__ == "__main__":
    main()
