"""Inputs, timing and rows of results, shared by the GPU benchmarks."""

from __future__ import annotations

import functools
import random
import statistics
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from triton.testing import do_bench

HEADS, DIM = 32, 128
LONG = 100.0  # milliseconds; calls that take longer are timed once per round
ROUNDS = 5
MAX_ERROR_LENGTH = 200
Call = Callable[[], Tensor]
Row = dict[str, object]


def inputs(n: int, batch: int = 1, heads: int = HEADS, dim: int = DIM, grad: bool = True) -> list[Tensor]:
    shape = (batch, heads, n, dim)
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=grad) for _ in range(3)]


def fused(backend: SDPBackend, tensors: list[Tensor], causal: bool) -> Call:
    def call() -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(tensors[0], tensors[1], tensors[2], is_causal=causal)

    return call


def milliseconds(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median time of each call.

    The calls alternate in a new random order each round, so that no call always runs on a cool GPU.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    shuffled = random.Random(0)
    for _ in range(ROUNDS):
        for name, call in shuffled.sample(list(calls.items()), len(calls)):
            once = timed(call)
            if once < LONG:
                once = float(do_bench(call, warmup=10, rep=40, return_mode="median"))  # pyright: ignore[reportArgumentType]
            times[name].append(once)
    return {name: statistics.median(taken) for name, taken in times.items()}


def timed(call: Callable[[], object]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def forward_and_both(calls: dict[str, Call], tensors: list[Tensor]) -> dict[str, dict[str, float]]:
    """Return the times of the forward pass, and of forward and backward, of each call."""
    gradient = torch.randn_like(tensors[0])
    with torch.no_grad():
        alone = milliseconds({**calls})
    passes = milliseconds(
        {name: functools.partial(both_passes, call, tensors, gradient) for name, call in calls.items()}
    )
    return {"forward": alone, "forward and backward": passes}


def both_passes(call: Call, tensors: list[Tensor], gradient: Tensor) -> None:
    for tensor in tensors:
        tensor.grad = None
    call().backward(gradient)


def warm_up(call: Call, tensors: list[Tensor]) -> None:
    """Compile and plan everything that `forward_and_both` times."""
    with torch.no_grad():
        call()
    both_passes(call, tensors, torch.randn_like(tensors[0]))
    torch.cuda.synchronize()


def row(case: str, n: int, ours: float, peer: str, theirs: float, target: str, ratio: float | None = None) -> Row:
    return {
        "case": case,
        "n": n,
        "ours ms": round(ours, 3),
        "peer": peer,
        "peer ms": round(theirs, 3),
        "ratio": round(theirs / ours if ratio is None else ratio, 3),
        "target": target,
    }


def error_row(case: str, n: int, text: str) -> Row:
    return {"case": case, "n": n, "error": text}


def shortened(error: BaseException) -> str:
    """Return the type and the start of the message of an error, in one line that fits into a table."""
    text = " ".join(f"{type(error).__name__}: {error}".replace("|", "/").split())
    return text if len(text) <= MAX_ERROR_LENGTH else text[: MAX_ERROR_LENGTH - 1] + "…"
