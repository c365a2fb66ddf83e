"""Benchmark of `attention()` on the CPU against baselines in the same run: 12 heads of 64, float32, 2 threads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from clearhead import Causal, Documents, Window, attention
from clearhead.ops.masks import Mask
from measuring import interleaved, write

HEADS, DIM = 12, 64
Row = dict[str, object]


def inputs(n: int, *, requires_grad: bool = False) -> list[Tensor]:
    return [torch.randn(1, HEADS, n, DIM, requires_grad=requires_grad) for _ in range(3)]


def row(case: str, n: int, seconds: dict[str, float], result: str, target: str, met: bool) -> Row:
    return {
        "case": case,
        "n": n,
        "clearhead, ms": round(seconds["ours"] * 1e3, 3),
        "peer, ms": round(seconds["peer"] * 1e3, 3),
        "result": result,
        "target": target,
        "met": "yes" if met else "no",
    }


def output_alone() -> list[Row]:
    rows = []
    for n in (32, 128, 256, 512, 1024, 4096):
        tensors = inputs(n)
        for name, mask in (("plain", None), ("causal", Causal())):
            found = interleaved(
                {
                    "ours": partial(attention, *tensors, mask=mask),
                    "peer": partial(sdpa, *tensors, is_causal=mask is not None),
                },
                rounds=max(40, 100_000 // n),
                repeats=max(1, 50_000 // n**2),
            )
            if n < 512:
                extra = (found["ours"] - found["peer"]) * 1e6
                rows.append(row(f"output, {name}", n, found, f"{extra:+.0f} µs", "at most +40 µs", extra <= 40))
            else:
                ratio = found["peer"] / found["ours"]
                rows.append(row(f"output, {name}", n, found, f"{ratio:.2f} ×", "≥ 0.98 ×", ratio >= 0.98))
    return rows


def training_step() -> list[Row]:
    query, key, value = inputs(1024, requires_grad=True)

    def step(call: Callable[[], Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(call().sum(), (query, key, value))

    found = interleaved(
        {
            "ours": step(lambda: attention(query, key, value, mask=Causal())),
            "peer": step(lambda: sdpa(query, key, value, is_causal=True)),
        },
        rounds=20,
    )
    ratio = found["peer"] / found["ours"]
    return [row("output and gradients, causal", 1024, found, f"{ratio:.2f} ×", "none", True)]


def sparse_masks() -> list[Row]:
    n = 8192
    tensors = inputs(n)
    masks: dict[str, Mask] = {
        "window of 256": Window(before=255),
        "window of 1,024": Window(before=1023),
        "8 packed documents, causal": Documents([n // 8] * 8) & Causal(),
    }
    rows = []
    for name, mask in masks.items():
        found = interleaved(
            {
                "ours": partial(attention, *tensors, mask=mask),
                "peer": partial(sdpa, *tensors, attn_mask=mask.dense(n, n)),
            },
            rounds=6,
        )
        ratio = found["peer"] / found["ours"]
        rows.append(row(f"{name}, against a dense mask", n, found, f"{ratio:.1f} ×", "≥ 4 ×", ratio >= 4))
    return rows


def statistics() -> list[Row]:
    n = 4096
    query, key, value = inputs(n)
    distances = (torch.arange(n)[:, None] - torch.arange(n)).abs().float()

    def observed(mask: Mask | None) -> object:
        output, weights = attention(query, key, value, mask=mask, return_weights=True)
        return output, weights.observe(entropy=True, received=True, distance=True)

    def dense_formula() -> object:
        weights = torch.softmax(query @ key.mT / DIM**0.5, dim=-1)
        entropy = -(weights * weights.log()).sum(dim=-1)
        return weights @ value, entropy, weights.sum(dim=-2), (weights * distances).sum(dim=-1)

    plain = {"ours": lambda: observed(None), "peer": lambda: sdpa(query, key, value)}
    causal = {"ours": lambda: observed(Causal()), "peer": lambda: sdpa(query, key, value, is_causal=True)}
    dense = {"ours": lambda: observed(None), "peer": dense_formula}
    name = "output, entropy, received, distance"
    rows = []
    for peer, calls, target in (("plain SDPA", plain, 1.8), ("causal SDPA, both causal", causal, 2.0)):
        found = interleaved(calls, rounds=25)
        ratio = found["ours"] / found["peer"]
        rows.append(row(f"{name}, against {peer}", n, found, f"{ratio:.2f} ×", f"≤ {target} ×", ratio <= target))
    found = interleaved(dense, rounds=4)
    faster = found["peer"] / found["ours"]
    result = f"{faster:.1f} × faster"
    rows.append(row(f"{name}, against the dense formula", n, found, result, "≥ 3.5 ×", faster >= 3.5))
    return rows


MEMORY_PROBE = """
import re, time, torch
from clearhead import Causal, attention
def status(name):
    return int(re.search(name + r":\\s+(\\d+)", open("/proc/self/status").read()).group(1))
x = [torch.randn(1, 1, 65536, 64) for _ in range(3)]
small = [t[:, :, :512] for t in x]
attention(*small, mask=Causal(), return_weights=True)[1].observe(entropy=True, received=True, distance=True, top=8)
before, start = status("VmRSS"), time.perf_counter()
output, weights = attention(*x, mask=Causal(), return_weights=True)
weights.observe(entropy=True, received=True, distance=True, top=8)
weights.pool(512, 512, reduce="max")
print(status("VmHWM") - before, time.perf_counter() - start)
"""


def memory() -> list[Row]:
    done = subprocess.run([sys.executable, "-c", MEMORY_PROBE], capture_output=True, text=True, check=True)
    kibibytes, seconds = done.stdout.split()
    gigabytes = int(kibibytes) * 1024 / 1e9
    return [
        {
            "case": "one head, all statistics, top 8 and a map: peak memory over the inputs",
            "n": 65536,
            "clearhead, ms": round(float(seconds) * 1e3),
            "peer, ms": "(the matrix: 17.2 GB)",
            "result": f"{gigabytes:.2f} GB",
            "target": "< 1.5 GB",
            "met": "yes" if gigabytes < 1.5 else "no",
        }
    ]


if __name__ == "__main__":
    torch.set_num_threads(2)
    torch.manual_seed(0)
    rows: list[Row] = []
    for part in (output_alone, training_step, sparse_masks, statistics, memory):
        print(f"measuring: {part.__name__.replace('_', ' ')}", flush=True)
        with torch.set_grad_enabled(part is training_step):
            rows += part()
    write("attention-cpu", "attention() on the CPU", rows)
