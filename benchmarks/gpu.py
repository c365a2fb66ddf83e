"""Benchmark of clearhead on one GPU against torch's fused kernels and compiled FlexAttention: bf16, random data.

Times are medians, measured in the same run. A ratio above 1 means that clearhead is faster, unless the peer's name
contains "ours / peer". Kernels are compiled beforehand, in separate processes.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from clearhead import Causal, Documents, Padding, Window, attention
from clearhead.ops.arguments import build_call
from clearhead.ops.masks import Mask
from gpu_grid import compare_grid
from gpu_operators import OPERATORS, compare_operators, compile_operator
from gpu_timing import DIM, HEADS, Call, Row, forward_and_both, fused, inputs, milliseconds, row
from measuring import RESULTS, write

WINDOW, DOCUMENTS = 4096, 8
SHAPES = [  # batch, heads, n, width
    (6, 32, 512, 64),
    (6, 32, 512, 128),
    (4, 32, 1024, 128),
    (4, 32, 2048, 64),
    (2, 32, 4096, 128),
    (1, 32, 8192, 64),
    (1, 32, 8192, 128),
    (1, 32, 16384, 128),
    (1, 32, 32768, 64),
    (1, 32, 32768, 128),
    (1, 32, 65536, 128),
    (1, 32, 131072, 128),
]
WITH_FLEX = [(1, 32, 8192, 64), (1, 32, 8192, 128)]  # only these, because FlexAttention compiles for minutes
FLASH_UP_TO = 32768  # longer texts skip flash, which is then half as fast as cuDNN
flex: Callable[..., Tensor] = torch.compile(flex_attention, dynamic=False)  # pyright: ignore[reportAssignmentType]


def causally(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return j <= i


def flexible(tensors: list[Tensor], allowed: Callable[..., Tensor] | None) -> Call:
    n = tensors[0].shape[2]
    if allowed is None:
        return lambda: flex(*tensors)
    block_mask = create_block_mask(allowed, None, None, n, n, device="cuda", _compile=True)
    return lambda: flex(*tensors, block_mask=block_mask)


def plain(batch: int, heads: int, n: int, dim: int, causal: bool) -> Iterator[Row]:
    """Compare "auto" and the Triton kernels with the fastest peer."""
    tensors = inputs(n, batch, heads, dim)
    mask = Causal() if causal else None
    calls = {"cuDNN": fused(SDPBackend.CUDNN_ATTENTION, tensors, causal)}
    if n <= FLASH_UP_TO:
        calls["flash"] = fused(SDPBackend.FLASH_ATTENTION, tensors, causal)
    if (batch, heads, n, dim) in WITH_FLEX:
        calls["compiled FlexAttention"] = flexible(tensors, causally if causal else None)
    mine: dict[str, Call] = {"auto": lambda: attention(*tensors, mask=mask)}
    if n <= FLASH_UP_TO:
        mine["triton"] = lambda: attention(*tensors, mask=mask, backend="triton")
    name = f"{'causal' if causal else 'plain'}, {batch * heads} × {dim}"
    for what, times in forward_and_both({**calls, **mine}, tensors).items():
        peer = min(calls, key=lambda peer, times=times: times[peer])
        for backend, target in zip(mine, ("≥ 0.98", ""), strict=False):
            yield row(f"{name}, {what}, {backend}", n, times[backend], peer, times[peer], target)


def windowed(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (j <= i) & (i - j < WINDOW)


def within_documents(size: int, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (j <= i) & (i // size == j // size)


def masks(n: int) -> dict[str, tuple[Mask, Callable[..., Tensor]]]:
    """Return each mask for clearhead and for FlexAttention."""
    size = n // DOCUMENTS
    documents = Causal() & Documents([size] * DOCUMENTS)
    return {
        "causal window of 4,096": (Window(WINDOW - 1), windowed),
        "eight causal documents": (documents, functools.partial(within_documents, size)),
    }


def masked(n: int) -> Iterator[Row]:
    for name, (mask, allowed) in masks(n).items():
        tensors = inputs(n)
        peer = "compiled FlexAttention"
        calls: dict[str, Call] = {
            peer: flexible(tensors, allowed),
            "ours": lambda tensors=tensors, mask=mask: attention(*tensors, mask=mask),
        }
        for what, times in forward_and_both(calls, tensors).items():
            target = "≥ 1.25" if what == "forward" else "≥ 1.15"
            yield row(f"{name}, {what}", n, times["ours"], peer, times[peer], target)


def building(n: int) -> Iterator[Row]:
    """Time the lowering of a new mask to the form that kernels read."""
    query, key, value = inputs(n, heads=1, grad=False)
    makers: dict[str, Callable[[], Mask]] = {
        "causal": Causal,
        "causal window of 4,096": lambda: Window(WINDOW - 1),
        "eight causal documents": lambda: Causal() & Documents([n // DOCUMENTS] * DOCUMENTS),
    }
    calls = {
        name: lambda make=make: build_call(query, key, value, mask=make()).lower() for name, make in makers.items()
    }
    for name, ours in milliseconds({**calls}).items():
        yield row(f"mask building: {name}", n, ours, "1 ms", 1.0, "≥ 1")


def observing(n: int, causal: bool) -> Iterator[Row]:
    """Compare output and statistics with the plain forward pass. The ratio is ours / peer."""
    query, key, value = inputs(n, grad=False)
    mask = Causal() if causal else None

    def observed(pool: tuple[int, int] | None = None) -> None:
        _, weights = attention(query, key, value, mask=mask, return_weights=True)
        weights.observe(entropy=True, received=True, distance=True, pool=pool)

    def summed() -> None:
        attention(query, key, value, mask=mask, return_weights=True)[1].received()

    calls = {
        "cuDNN": fused(SDPBackend.CUDNN_ATTENTION, [query, key, value], causal),
        "statistics": observed,
        "with a map": lambda: observed(pool=(512, 512)),
        "column sums": summed,
    }
    times = milliseconds({**calls})
    kind = "causal" if causal else "plain"
    name = f"{kind}, output + entropy + received + distance"
    rows = (
        ("statistics", name, "≤ 1.45"),
        ("with a map", f"{name} + 512 × 512 map", "≤ 1.6"),
        ("column sums", f"{kind}, output + received", "≤ 1.4"),
    )
    for ours, case, target in rows:
        ratio = times[ours] / times["cuDNN"]
        yield row(case, n, times[ours], "cuDNN, output alone: ours / peer", times["cuDNN"], target, ratio)
    if n == 8192:
        # measured separately: it waits for memory, which lets the GPU cool
        dense = milliseconds({"": lambda: written_out(query, key, value, causal)})[""]
        yield row(name, n, times["statistics"], "the dense formula", dense, "≥ 8")


def written_out(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> tuple[Tensor, ...]:
    n = query.shape[2]
    scores = (query @ key.mT).float() * DIM**-0.5
    places = torch.arange(n, device="cuda")
    if causal:
        scores.masked_fill_(places > places[:, None], -torch.inf)
    weights = scores.softmax(dim=-1)
    distance = (places[:, None] - places).abs().float()
    entropy = torch.special.entr(weights).sum(dim=-1)
    return weights.to(value.dtype) @ value, entropy, weights.sum(dim=-2), (weights * distance).sum(dim=-1)


def largest(n: int, causal: bool) -> Iterator[Row]:
    query, key, value = inputs(n, grad=False)
    mask = Causal() if causal else None
    _, weights = attention(query, key, value, mask=mask, return_weights=True)
    peer = fused(SDPBackend.CUDNN_ATTENTION, [query, key, value], causal)
    times = milliseconds({"cuDNN": peer, "ours": lambda: weights.topk(16)})
    name = f"{'causal' if causal else 'plain'}, top 16 keys of each query"
    ratio = times["ours"] / times["cuDNN"]
    yield row(name, n, times["ours"], "cuDNN, output: ours / peer", times["cuDNN"], "≤ 2.0", ratio)


def a_million(n: int = 2**20) -> Iterator[Row]:
    """Time one head, and measure its memory without the inputs."""
    query, key, value = inputs(n, heads=1, grad=False)
    held = torch.cuda.memory_allocated()
    for causal in (False, True):
        mask = Causal() if causal else None
        theirs = milliseconds({"": fused(SDPBackend.CUDNN_ATTENTION, [query, key, value], causal)})[""]
        _, weights = attention(query, key, value, mask=mask, return_weights=True)
        jobs: dict[str, Callable[[], object]] = {
            "output": lambda mask=mask: attention(query, key, value, mask=mask, return_weights=True),
            "entropy, received, distance": lambda w=weights: w.observe(entropy=True, received=True, distance=True),
            "2,048 × 2,048 map": lambda w=weights: w.pool(2048, 2048),
        }
        if causal:
            jobs["top 16"] = lambda w=weights: w.topk(16)
            jobs["2,048 × 2,048 map of maxima"] = lambda w=weights: w.pool(2048, 2048, reduce="max")
        for name, job in jobs.items():
            torch.cuda.reset_peak_memory_stats()
            ours = milliseconds({"": job})[""]
            extra = (torch.cuda.max_memory_allocated() - held) / 2**20
            case = f"{'causal' if causal else 'plain'}, one head, {name} ({extra:.0f} MiB)"
            yield row(case, n, ours, "cuDNN, output: ours / peer", theirs, "reported", ours / theirs)


def decoding(n: int) -> Iterator[Row]:
    """Time decoding of one token for 8 texts, with 32 heads on 8 key heads."""
    query = torch.randn(8, 32, 1, DIM, device="cuda", dtype=torch.bfloat16)
    key, value = (torch.randn(8, 8, n, DIM, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    lengths = torch.randint(1, n, (8,), generator=torch.Generator().manual_seed(0))
    lengths = (lengths * (n / 2) / lengths.float().mean()).long().clamp(1, n)
    ragged = Padding(lengths)
    copied = torch.empty_like(key)
    times = milliseconds(
        {
            "copy": lambda: copied.copy_(key),
            "SDPA": lambda: scaled_dot_product_attention(query, key, value, enable_gqa=True),
            "auto": lambda: attention(query, key, value),
            "triton": lambda: attention(query, key, value, backend="triton"),
            "ragged": lambda: attention(query, key, value, mask=ragged),
        }
    )
    for backend, target in (("auto", "≥ 0.98"), ("triton", "")):
        yield row(f"decoding, full cache, {backend}", n, times[backend], "SDPA", times["SDPA"], target)
    # copying the keys moves as many bytes as reading keys and values
    ideal = times["copy"] * float(lengths.float().mean()) / n
    peer = "bytes needed / time, over copy bandwidth"
    yield row("decoding, ragged cache", n, times["ragged"], peer, ideal, "≥ 0.7")


def whole_model(n: int) -> Iterator[Row]:
    """Compare SmolLM2 (random weights) under `watch` with SDPA without statistics. The ratio is ours / peer."""
    from transformers import LlamaConfig, LlamaModel

    from clearhead.huggingface import watch

    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=n,
    )  # fmt: skip
    model = LlamaModel(config).eval().to(device="cuda", dtype=torch.bfloat16)  # pyright: ignore
    ids = torch.randint(0, config.vocab_size, (1, n), device="cuda")

    def forward() -> None:
        model(input_ids=ids, use_cache=False)

    def watched() -> None:
        with watch(model, entropy=True, received=True, distance=True):
            forward()

    with torch.inference_mode():
        times = milliseconds({"sdpa": forward, "watched": watched})
    ratio = times["watched"] / times["sdpa"]
    peer = "SDPA, no statistics: ours / peer"
    yield row("SmolLM2, entropy + received + distance", n, times["watched"], peer, times["sdpa"], "≤ 1.8", ratio)


def compile_flex(shape: tuple[int, int, int, int], which: str) -> None:
    """Compile one FlexAttention into the on-disk cache."""
    batch, heads, n, dim = shape
    tensors = inputs(n, batch, heads, dim)
    allowed = {"plain": None, "causal": causally}[which] if which in ("plain", "causal") else masks(n)[which][1]
    call = flexible(tensors, allowed)
    with torch.no_grad():
        call()
    call().sum().backward()


def compile_ours(dim: int, mask: Mask | None) -> None:
    """Compile the Triton kernels for a width and a kind of mask."""
    tensors = inputs(512, dim=dim)
    attention(*tensors, mask=mask, backend="triton").sum().backward()


def compile_statistics(mask: Mask | None, size: int) -> None:
    """Compile the statistics kernels, with heatmaps of bins of `size`, or with top keys if `size` is 0."""
    tensors = inputs(512, grad=False)
    _, weights = attention(*tensors, mask=mask, return_weights=True)
    if size:
        weights.observe(entropy=True, received=True, distance=True, pool=(512 // size, 512 // size))
    else:
        weights.observe(entropy=True, received=True, distance=True, top=16)


def compile_decoding(ragged: bool) -> None:
    query = torch.randn(8, 32, 1, DIM, device="cuda", dtype=torch.bfloat16)
    key = torch.randn(8, 8, 65536, DIM, device="cuda", dtype=torch.bfloat16)
    attention(query, key, key, mask=Padding([1] * 8) if ragged else None, backend="triton")


def compile_all(parts: list[str], processes: int) -> None:
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        jobs = []
        if "statistics" in parts or "million" in parts:
            sizes = (0, 16, 64, 256)
            jobs += [pool.submit(compile_statistics, mask, size) for mask in (None, Causal()) for size in sizes]
        if "decoding" in parts:
            jobs += [pool.submit(compile_decoding, ragged) for ragged in (False, True)]
        if "masked" in parts or "plain" in parts:
            jobs += [pool.submit(compile_ours, dim, mask) for dim in (128, 64) for mask in (None, Causal())]
        if "masked" in parts:
            jobs += [pool.submit(compile_flex, (1, HEADS, n, DIM), name) for n in (32768, 8192) for name in masks(n)]
        if "plain" in parts:
            jobs += [pool.submit(compile_flex, shape, which) for shape in WITH_FLEX for which in ("plain", "causal")]
        if "operators" in parts:
            jobs += [pool.submit(compile_operator, name) for name in OPERATORS]
        for job in jobs:
            job.result()


PARTS: dict[str, Callable[[], Iterable[Iterable[Row]]]] = {
    "masked": lambda: [masked(32768), masked(8192), building(131072)],
    "statistics": lambda: [
        *(observing(n, causal) for n in (8192, 32768, 131072) for causal in (False, True)),
        *(largest(n, causal) for n in (8192, 32768, 131072) for causal in (False, True)),
    ],
    "decoding": lambda: [decoding(65536)],
    "million": lambda: [a_million()],
    "model": lambda: [whole_model(n) for n in (32768, 131072)],
    "plain": lambda: [plain(*shape, causal) for shape in SHAPES for causal in (False, True)],
    "grid": compare_grid,
    "operators": compare_operators,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for gpu-PART.json and gpu-PART.md")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help='"model" needs transformers')
    parser.add_argument("--processes", type=int, default=14, help="number of processes that compile kernels")
    arguments = parser.parse_args()
    compile_all(arguments.parts, arguments.processes)
    torch.manual_seed(0)
    for name in arguments.parts:
        rows: list[Row] = []
        for part in PARTS[name]():
            rows += part
            torch.cuda.empty_cache()
            write(f"gpu-{name}", f"One GPU, bf16: {name}", rows, arguments.output)  # an interrupted run keeps its rows


if __name__ == "__main__":
    main()
