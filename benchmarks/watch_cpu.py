"""Benchmark of `watch` with SmolLM2 on the CPU: a forward pass and a generation, against the unwatched model on sdpa.

The variants alternate in one process, and the shortest run of each counts. `python tests/support/pretrained.py smollm2`
downloads SmolLM2 and prints the path of its .gguf file.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from clearhead import watch
from measuring import interleaved, ratios_to_first, write

N, PROMPT, NEW_TOKENS = 1024, 64, 32
ROUNDS = 3
FOUR = {"entropy": True, "received": True, "distance": True, "top": 8}


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

    def forward() -> None:
        model(ids, use_cache=False)

    def generate() -> None:
        model.generate(ids[:, :PROMPT], max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False)

    def watched(run: Callable[[], None], **options: Any) -> Callable[[], None]:
        def call() -> None:
            with watch(model, **options):
                run()

        return call

    passes = interleaved(
        {
            "unwatched forward": forward,
            "entropy": watched(forward, entropy=True),
            "entropy, received, distance, top 8": watched(forward, **FOUR),
            "lazy weights": watched(forward),
        },
        ROUNDS,
    )
    generations = interleaved(
        {
            "unwatched generation": generate,
            f"entropy of {NEW_TOKENS} new tokens": watched(generate, entropy=True),
            f"lazy weights of {NEW_TOKENS} new tokens": watched(generate),
        },
        ROUNDS,
    )
    targets = {
        "entropy": "≤ 1.35", "entropy, received, distance, top 8": "≤ 1.9", "lazy weights": "≤ 1.05",
        f"entropy of {NEW_TOKENS} new tokens": "≤ 1.15 (goal)", f"lazy weights of {NEW_TOKENS} new tokens": "reported",
    }  # fmt: skip
    write(
        "watch-cpu",
        f"SmolLM2-135M, {N} tokens, float32",
        [*ratios_to_first(passes, targets), *ratios_to_first(generations, targets)],
    )


if __name__ == "__main__":
    main()
