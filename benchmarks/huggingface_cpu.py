"""Benchmark of SmolLM2 on the CPU: a forward pass against SDPA, and a watched one against eager attention.

Each variant runs in separate processes, which alternate, because eager attention fragments the heap. The shortest run
counts. `python tests/support/pretrained.py smollm2` downloads SmolLM2 and prints the path of its .gguf file.
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
from transformers import AutoModel

from clearhead.huggingface import watch
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
TURNS, ROUNDS = 3, 3


def measure(path: Path, variant: str) -> None:
    """Print the shortest time in seconds and the peak memory, with the model, in MiB as JSON."""
    implementation, run = VARIANTS[variant]
    model = AutoModel.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation=implementation
    )
    model.eval()
    ids = torch.randint(0, model.config.vocab_size, (1, N), generator=torch.Generator().manual_seed(0))
    seconds = []
    with torch.inference_mode():
        for _ in range(ROUNDS):
            start = time.perf_counter()
            run(model, ids)
            seconds.append(time.perf_counter() - start)
    print(json.dumps([min(seconds), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024]))


def row(case: str, ours: float, peer: str, theirs: float, ratio: float, target: str) -> dict[str, object]:
    columns = {"ours": round(ours, 3), "peer": peer, "theirs": round(theirs, 3), "ratio": round(ratio, 3)}
    return {"case": case, **columns, "target": target}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="SmolLM2's .gguf file")
    parser.add_argument("--variant", choices=VARIANTS, help="measure only this variant and print JSON")
    arguments = parser.parse_args()
    if arguments.variant:
        measure(arguments.model, arguments.variant)
        return
    best, memory = dict.fromkeys(VARIANTS, float("inf")), dict.fromkeys(VARIANTS, 0)
    for _ in range(TURNS):
        for name in VARIANTS:
            command = [sys.executable, __file__, str(arguments.model), "--variant", name]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
            seconds, peak = json.loads(done.stdout)
            best[name], memory[name] = min(best[name], seconds), max(memory[name], peak)
    ours, slow = "clearhead, watched", "eager, output_attentions"
    same = "eager with output_attentions and the same reductions"
    plain, sdpa = best["clearhead"], best["sdpa"]
    rows = [
        row("plain forward, s", plain, "sdpa", sdpa, sdpa / plain, "≥ 0.97"),
        row("watched: entropy, received, top 8, s", best[ours], same, best[slow], best[slow] / best[ours], "≥ 2.5"),
        row("the same, peak memory, MiB", memory[ours], same, memory[slow], memory[ours] / memory[slow], "≤ 0.25"),
    ]
    write("huggingface-cpu", f"SmolLM2-135M, n = {N}, float32", rows)


if __name__ == "__main__":
    main()
