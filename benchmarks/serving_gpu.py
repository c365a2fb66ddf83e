"""Benchmark of observing a server's steps on one GPU: attention rows of a paged cache, bf16, random data.

vLLM is not installed here. The cache is filled in its layouts, and the peers are attention calls on contiguous keys: a
paged kernel reads the same bytes, in blocks. The ratio is the time of observing over that of attention, so that 0.5
means half of the time of the attention call in addition to it. Times are medians, measured in the same run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from clearhead import Causal, attention
from clearhead.ops.triton.paged_scores import paged_scores
from clearhead.ops.triton.score_rows import softmax_in_place
from clearhead.serving.decode import decode_rows
from clearhead.serving.layers import ServedLayer
from clearhead.serving.paged import PagedCache
from clearhead.serving.prefill import Rows, prefill_rows
from clearhead.serving.statistics import StatisticsWanted
from gpu_timing import Row, milliseconds, shortened
from measuring import RESULTS, write

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.vllm_caches import empty_cache  # pyright: ignore[reportMissingImports]

HEADS, KV_HEADS, DIM, BLOCK = 32, 8, 128, 16
LAYER = ServedLayer(0, "layers.0", HEADS, KV_HEADS, DIM**-0.5)
SDPA_KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
}
LAUNCHES = 50  # few enough that the queue of the GPU does not fill
LAYOUTS = {"NHD": "LBNHC", "HND": "LBHNC"}
Call = Callable[[], object]


class Step:
    """Requests of one decoding step, with their keys and values in a paged cache and contiguous."""

    def __init__(self, kv_lens: list[int], layout: str) -> None:
        self.kv_lens = torch.tensor(kv_lens, device="cuda")
        longest = max(kv_lens)
        columns = -(-longest // BLOCK)
        rows = len(kv_lens)
        self.query = normal(rows, HEADS, DIM)
        memory = empty_cache(
            rows * columns + 1, KV_HEADS, BLOCK, 2 * DIM, LAYOUTS[layout], dtype=torch.bfloat16, device="cuda"
        )
        memory.normal_()
        self.cache = PagedCache.interleaved(memory)
        order = torch.randperm(rows * columns, generator=torch.Generator().manual_seed(0))
        self.block_table = (1 + order).view(rows, columns).to("cuda", torch.int32)
        self.received = torch.zeros(rows, HEADS, columns * BLOCK, device="cuda")

    def scores(self) -> Tensor:
        return paged_scores(self.query, self.cache.key_blocks, self.block_table, self.kv_lens, None, LAYER.scale)

    def weights(self) -> Tensor:
        scores = self.scores()
        softmax_in_place(scores, self.kv_lens)
        return scores

    def rows(self) -> object:
        return decode_rows(LAYER, self.query, self.cache, self.block_table, self.kv_lens)

    def observed(self) -> None:
        """Compute entropy, and add the weights to those that the keys have received."""
        rows = decode_rows(LAYER, self.query, self.cache, self.block_table, self.kv_lens)
        self.received += rows.weights.reshape(self.received.shape)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device="cuda")


def sdpa(query: Tensor, key: Tensor, value: Tensor, backend: SDPBackend, mask: Tensor | None = None) -> Tensor:
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)


def working(calls: dict[str, Call]) -> dict[str, Call]:
    """Return the calls that this version of torch supports."""
    supported = {}
    for name, call in calls.items():
        try:
            call()
        except (RuntimeError, ValueError) as error:
            print(f"{name}: {shortened(error)}", flush=True)
        else:
            supported[name] = call
    return supported


def host_milliseconds(call: Call) -> float:
    """Return the time that the CPU takes to launch a call, without waiting for the GPU."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(LAUNCHES):
        call()
    taken = time.perf_counter() - start
    torch.cuda.synchronize()
    return taken / LAUNCHES * 1e3


def compare(case: str, ours: dict[str, Call], peers: dict[str, Call], read: int) -> Iterator[Row]:
    """Yield a row for each of our calls, against the fastest peer. `read` is the number of bytes of the keys."""
    peers = working(peers)
    copied = torch.empty(2**29, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(copied)
    times = milliseconds({**ours, **peers, "copy": lambda: target.copy_(copied)})
    bandwidth = 2 * copied.numel() / times["copy"]  # bytes per millisecond, read and written
    peer = min(peers, key=lambda name: times[name])
    others = ", ".join(f"{name} {times[name]:.3f} ms" for name in peers if name != peer)
    for name in ours:
        yield {
            "case": f"{case}: {name}",
            "ours ms": round(times[name], 3),
            "ours on the CPU ms": round(host_milliseconds(ours[name]), 3),
            "keys at copy bandwidth ms": round(read / bandwidth, 3),
            "fastest peer": peer,
            "peer ms": round(times[peer], 3),
            "ours / peer": round(times[name] / times[peer], 3),
            "other peers": others,
        }


def decoding(kv_lens: list[int], layout: str, name: str) -> Iterator[Row]:
    step = Step(kv_lens, layout)
    ours: dict[str, Call] = {
        "scores": step.scores,
        "scores, then softmax in place": step.weights,
        "`decode_rows`: entropy and weights": step.rows,
        "entropy and received": step.observed,
    }
    longest = max(kv_lens)
    query = step.query[:, :, None]
    key, value = (normal(len(kv_lens), KV_HEADS, longest, DIM) for _ in range(2))
    peers: dict[str, Call] = {}
    if min(kv_lens) == longest:
        peers = {
            f"SDPA {kernel}, contiguous keys": partial(sdpa, query, key, value, backend)
            for kernel, backend in SDPA_KERNELS.items()
        }
    lens = step.kv_lens - 1
    peers["clearhead's attention, contiguous keys"] = lambda: attention(
        query, key, value, mask=Causal(), query_start=lens, backend="triton"
    )
    yield from compare(f"decoding, {name}, {layout}", ours, peers, sum(kv_lens) * KV_HEADS * DIM * 2)


def prefill(q_len: int, kv_len: int, layout: str) -> Iterator[Row]:
    step = Step([kv_len], layout)
    queries = normal(q_len, HEADS, DIM)
    rows = [Rows(0, 0, q_len, kv_len)]

    def observed(wanted: StatisticsWanted) -> object:
        return prefill_rows(LAYER, queries, step.cache, rows, step.block_table, wanted)

    ours: dict[str, Call] = {
        "gather of keys": lambda: step.cache.gather(step.block_table[0], 0, kv_len, values=False),
        "gather of keys and values": lambda: step.cache.gather(step.block_table[0], 0, kv_len),
        "entropy and received": partial(observed, StatisticsWanted(sink=False)),
        "entropy, received and sink": partial(observed, StatisticsWanted()),
    }
    query = queries.transpose(0, 1)[None]
    key, value = (normal(1, KV_HEADS, kv_len, DIM) for _ in range(2))
    mask = causal_lower_right(q_len, kv_len)
    peers: dict[str, Call] = {
        "SDPA flash, contiguous keys": partial(sdpa, query, key, value, SDPBackend.FLASH_ATTENTION, mask),
        "clearhead's attention, contiguous keys": lambda: attention(query, key, value, mask=Causal()),
    }
    yield from compare(
        f"chunked prefill, {q_len} rows over {kv_len} keys, {layout}", ours, peers, kv_len * KV_HEADS * DIM * 2
    )


def cases() -> Iterator[Iterator[Row]]:
    ragged = torch.randint(1, 8193, (64,), generator=torch.Generator().manual_seed(0)).tolist()
    for layout in LAYOUTS:
        yield decoding([8192] * 64, layout, "64 requests of 8192 tokens")
    yield decoding(ragged, "NHD", "64 requests of 1 to 8192 tokens")
    yield decoding([131_072], "NHD", "one request of 131072 tokens")
    yield decoding([128] * 4, "NHD", "4 requests of 128 tokens: the time of launches")
    yield prefill(2048, 8192, "NHD")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--output",
        type=Path,
        default=RESULTS / "serving-gpu.json",
        help="JSON file; a table is written to the same folder",
    )
    target: Path = parser.parse_args().output
    torch.manual_seed(0)
    rows: list[Row] = []
    with torch.no_grad():
        for case in cases():
            rows += case
            write(target.stem, "One GPU, bf16: observing the steps of a server", rows, target.parent)


if __name__ == "__main__":
    main()
