"""Benchmark of `reference` against `streaming` by size, for the table in `ops/dispatch.py`."""

from __future__ import annotations

from functools import partial

import torch

from clearhead import Causal, Window, attention
from measuring import interleaved, write

OPTIONS = {
    "window": {"mask": Window(before=15)},
    "softcap, causal": {"softcap": 30.0, "mask": Causal(), "query_start": 1},
    "dropout": {"dropout": 0.1},
}

if __name__ == "__main__":
    torch.set_num_threads(2)
    torch.manual_seed(0)
    rows = []
    for name, options in OPTIONS.items():
        for n in (16, 32, 64, 128, 256, 512):
            tensors = [torch.randn(1, 12, n, 64) for _ in range(3)]
            backends = ("reference", "streaming")
            calls = {backend: partial(attention, *tensors, **options, backend=backend) for backend in backends}
            found = interleaved(calls, rounds=max(10, 10_000 // n))
            rows.append(
                {
                    "problem": name,
                    "n": n,
                    "cells": 12 * n * n,
                    **{f"{backend}, ms": round(seconds * 1e3, 3) for backend, seconds in found.items()},
                    "fastest": min(found, key=lambda backend: found[backend]),
                }
            )
    write("choice-cpu", "reference against streaming on the CPU, 12 heads of 64, float32", rows)
