"""Timing of calls on a GPU, shared by the GPU benchmarks."""

from __future__ import annotations

import functools
import random
import statistics
from collections.abc import Callable

import torch
from torch import Tensor
from triton.testing import do_bench

LONG = 100.0  # milliseconds; calls that take longer are timed once per round
ROUNDS = 5
Call = Callable[[], Tensor]


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

    def both(call: Call) -> None:
        for tensor in tensors:
            tensor.grad = None
        call().backward(gradient)

    with torch.no_grad():
        alone = milliseconds({**calls})
    passes = milliseconds({name: functools.partial(both, call) for name, call in calls.items()})
    return {"forward": alone, "forward and backward": passes}
