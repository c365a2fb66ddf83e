"""Benchmark of a loop over heads against one product for all heads, as on the course's page "All heads at once".

`python benchmarks/heads_at_once.py` measures on the GPU if there is one, otherwise on the CPU: d_model 512, 8 heads of
64, float32. Both calculations use the same weights and give the same numbers.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from measuring import RESULTS, interleaved, write

D_MODEL, HEADS = 512, 8
TOKENS = {"cpu": (16, 64, 256, 1024), "cuda": (16, 64, 256, 1024, 4096)}
Weights = Float[Tensor, "projections heads d_model d_k"]


def head(x: Tensor, query_weight: Tensor, key_weight: Tensor, value_weight: Tensor) -> Tensor:
    """Return the output of one head, or of all heads if the weights have an axis of heads."""
    query, key, value = x @ query_weight, x @ key_weight, x @ value_weight
    return torch.softmax(query @ key.mT / query.shape[-1] ** 0.5, dim=-1) @ value


def loop(x: Tensor, weights: Weights) -> Float[Tensor, "heads n d_k"]:
    """Return the output of each head, one head after another."""
    return torch.stack([head(x, *weights[:, index]) for index in range(weights.shape[1])])


def at_once(x: Tensor, weights: Weights) -> Float[Tensor, "heads n d_k"]:
    """Return the output of each head, with the head as one more axis of every product."""
    return head(x, *weights)


def finished(call: Callable[[], Tensor], device: str) -> Callable[[], object]:
    """Return a call that returns after the device has finished its work."""

    def run() -> None:
        call()
        if device == "cuda":
            torch.cuda.synchronize()

    return run


def row(tokens: int, device: str) -> dict[str, object]:
    x = torch.randn(tokens, D_MODEL, device=device)
    weights = torch.randn(3, HEADS, D_MODEL, D_MODEL // HEADS, device=device) * D_MODEL**-0.5
    calls = {"loop": partial(loop, x, weights), "at once": partial(at_once, x, weights)}
    seconds = interleaved({name: finished(call, device) for name, call in calls.items()}, rounds=300)
    return {
        "tokens": tokens,
        "loop, ms": round(seconds["loop"] * 1e3, 3),
        "at once, ms": round(seconds["at once"] * 1e3, 3),
        "loop / at once": round(seconds["loop"] / seconds["at once"], 2),
        "largest difference": f"{(loop(x, weights) - at_once(x, weights)).abs().max().item():.1e}",
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=RESULTS)
    folder = parser.parse_args().output
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    title = f"A loop over 8 heads against one product, d_model 512, float32, {device}"
    with torch.no_grad():
        write(f"heads-at-once-{device}", title, [row(tokens, device) for tokens in TOKENS[device]], folder)
