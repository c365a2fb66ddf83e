"""Benchmark of the viewer's heatmaps of a long text, without browser and server: thumbnails, overview, windows.

`python benchmarks/viewer_maps.py --tokens 32768`; on a GPU `--device cuda --tokens 1048576`. Random queries and keys,
causal. Each row is the median of several runs; the overview is computed once.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from clearhead import Causal, Recording, attention
from clearhead.ops.statistics import Reduce
from clearhead.recording.recording import Stack, Tokens
from clearhead.viewer._heatmap import (
    MAX_EXACT_CELLS,
    MAX_PAGE_BINS,
    HeadOverview,
    HeatmapWindow,
    ProgressiveHeatmap,
    is_exact,
)
from clearhead.viewer._recording_cache import RecordingCache
from measuring import RESULTS, write

RUNS = 5
Row = dict[str, object]


def synthetic(tokens: int, heads: int, device: str, dtype: torch.dtype) -> Recording:
    """Return a recording of one causal layer with random queries and keys. Each token is named by its index."""
    query, key = (torch.randn(1, heads, tokens, 64, device=device, dtype=dtype) for _ in range(2))
    _, weights = attention(query, key, key, mask=Causal(), return_weights=True)
    texts = Tokens(tuple(map(str, range(tokens))), (False,) * tokens, tuple(range(tokens)))
    return Recording("random", {"decoder": Stack((weights.without_values(),), texts, texts)})


def seconds(job: Callable[[], object]) -> float:
    """Return the median time of several runs, without the first."""
    taken = []
    for _ in range(RUNS + 1):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        start = time.perf_counter()
        job()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


def compute(progressive: ProgressiveHeatmap | HeadOverview) -> float:
    """Run all steps and return the time of the longest."""
    longest = 0.0
    while not progressive.finished:
        start = time.perf_counter()
        progressive.advance()
        longest = max(longest, time.perf_counter() - start)
    return longest


def row(what: str, taken: float, step: float | None = None) -> Row:
    return {"what": what, "ms": f"{1e3 * taken:.1f}", "longest step, ms": "" if step is None else f"{1e3 * step:.1f}"}


def measured(recording: Recording) -> Iterator[Row]:
    stack = recording["decoder"]
    tokens, heads = len(stack.keys), stack.layers[0].shape[1]
    weights = recording.weights(("decoder", 0, 0))
    taken = seconds(lambda: RecordingCache(recording).thumbnails("decoder", 0))
    yield row(f"small maps of {heads} heads, from 128 rows each", taken)
    warm = HeadOverview(weights)
    for _ in range(2):  # compiles the kernels of heatmaps and profiles on a GPU
        warm.advance()
    overview = HeadOverview(weights)
    start = time.perf_counter()
    step = compute(overview)
    yield row("overview: 2,048² mean and max, entropy, received", time.perf_counter() - start, step)
    sides = [side for side in (65_536, 32_768, 16_384, 8192, 4096, 1024, 512, 128) if side < tokens]
    for side in sides:
        window = HeatmapWindow(tokens - side, tokens, tokens - side, tokens)  # on the diagonal
        if side > 8192 and side**2 > MAX_EXACT_CELLS[weights.device.type]:
            continue
        for reduce in ("max", "mean"):
            steps: list[float] = []

            def job(window: HeatmapWindow = window, reduce: Reduce = reduce, steps: list[float] = steps) -> None:
                progressive = ProgressiveHeatmap(weights, window, MAX_PAGE_BINS, (reduce,))
                steps.append(compute(progressive))
                progressive.heatmap(reduce)

            taken = seconds(job)
            yield row(f"window of {side:,}², {reduce}, exact", taken, max(steps[1:]))
    if not is_exact(weights, HeatmapWindow(0, tokens, 0, tokens)):
        heatmap = overview.heatmaps.heatmap("max")
        half = HeatmapWindow(0, tokens // 2, 0, tokens // 2)
        taken = seconds(lambda: heatmap.crop(half).downsampled("max", MAX_PAGE_BINS))
        yield row(f"window of {tokens // 2:,}², from the overview", taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    recording = synthetic(arguments.tokens, arguments.heads, arguments.device, getattr(torch, arguments.dtype))
    title = (
        f"The viewer's maps, {arguments.tokens:,} tokens, {arguments.device}, {arguments.dtype}, causal, key width 64"
    )
    rows = list(measured(recording))
    if arguments.device == "cuda":
        rows.append(row(f"peak memory: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB", 0.0))
    write(f"viewer-maps-{arguments.device}-{arguments.tokens}", title, rows, arguments.output)


if __name__ == "__main__":
    main()
