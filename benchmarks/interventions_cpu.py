"""Benchmark of `ablate`, `cut` and `patch` with SmolLM2 on the CPU, against the unchanged model on sdpa.

The variants alternate in one process, and the shortest run of each counts. `python tests/support/pretrained.py smollm2`
downloads SmolLM2 and prints the path of its .gguf file.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from clearhead.watching import ablate, cut, patch, watch
from measuring import interleaved, ratios_to_first, write

N, LAYERS, HEADS = 1024, 30, 9
ROUNDS = 3


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="SmolLM2's .gguf file")
    path = parser.parse_args().model
    model: Any = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="sdpa"
    )
    model.eval()
    ids = torch.randint(0, model.config.vocab_size, (1, N), generator=torch.Generator().manual_seed(0))
    with watch(model, values=True) as seen:
        model(ids.flip(1), use_cache=False)
    outputs = {(layer, head): seen[layer].output for layer in range(LAYERS) for head in range(HEADS)}

    def forward() -> None:
        model(ids, use_cache=False)

    def within(block: Callable[[], AbstractContextManager[None]]) -> Callable[[], None]:
        def call() -> None:
            with block():
                forward()

        return call

    span = [(slice(100, None), slice(10, 50))]
    times = interleaved(
        {
            "unchanged forward": forward,
            "ablate one head": within(lambda: ablate(model, [(18, 6)])),
            "cut a span in all layers and heads": within(lambda: cut(model, span)),
            "cut a span in one head": within(lambda: cut(model, {(18, 6): span})),
            "cut a span everywhere, not renormalized": within(lambda: cut(model, span, renormalize=False)),
            "patch the outputs of all heads": within(lambda: patch(model, outputs)),
            "patch the pattern of one head": within(lambda: patch(model, {(18, 6): seen[18].weights})),
        },
        ROUNDS,
    )
    targets = dict.fromkeys(times, "≤ 1.3 (goal)")
    write("interventions-cpu", f"SmolLM2-135M, {N} tokens, float32", ratios_to_first(times, targets))


if __name__ == "__main__":
    main()
