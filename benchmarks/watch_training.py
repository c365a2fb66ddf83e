"""Benchmark of `AttentionLog` on the CPU: training steps of a small GPT-2, observed and not.

A step is the forward pass, the backward pass and the optimizer. Both kinds alternate in one process, and the shortest
of each counts. With dropout, torch runs attention without a fused kernel.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from clearhead.watching import AttentionLog
from measuring import interleaved, write

TOKENS, EVERY, ROUNDS = 512, 100, 10
WIDTH, LAYERS, HEADS, VOCABULARY = 256, 4, 8, 2048


def measure(dropout: float, folder: Path) -> list[dict[str, object]]:
    config = GPT2Config(
        n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, vocab_size=VOCABULARY, n_positions=TOKENS, bos_token_id=0,
        eos_token_id=0, attn_pdrop=dropout, resid_pdrop=dropout, embd_pdrop=dropout,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).train()
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, VOCABULARY, (1, TOKENS))
    log = AttentionLog(model, folder / f"{dropout}.jsonl", every=EVERY)

    def train(step: int) -> None:
        with log.step(step):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    # a step that is not observed differs from a plain one by an empty `with` block, which is measured apart
    seconds = interleaved({"plain": lambda: train(1), "observed": lambda: train(EVERY)}, ROUNDS)
    plain, observed = seconds["plain"], seconds["observed"]
    mean = plain + (observed - plain) / EVERY
    return [
        row("every step observed", dropout, observed, plain, "≤ 2.00"),
        row(f"one step in {EVERY} observed, mean of all steps", dropout, mean, plain, "≤ 1.02"),
    ]


def measure_empty_block(folder: Path) -> dict[str, object]:
    log = AttentionLog(torch.nn.Module(), folder / "empty.jsonl", every=EVERY)

    def enter() -> None:
        with log.step(1):
            pass

    seconds = interleaved({"enter": enter}, rounds=20, repeats=1000)["enter"]
    return {"case": "added to a step that is not observed", "logged, ms": round(seconds * 1e3, 4)}


def row(case: str, dropout: float, logged: float, plain: float, target: str) -> dict[str, object]:
    times = {"logged, ms": round(logged * 1e3, 1), "plain, ms": round(plain * 1e3, 1)}
    return {"case": case, "dropout": dropout, **times, "ratio": round(logged / plain, 3), "target": target}


def main() -> None:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        rows = [each for dropout in (0.0, 0.1) for each in measure(dropout, Path(folder))]
        rows.append(measure_empty_block(Path(folder)))
    title = f"Training steps of GPT-2: {LAYERS} layers, {HEADS} heads, width {WIDTH}, {TOKENS} tokens, float32"
    write("watch-training-cpu", title, rows)


if __name__ == "__main__":
    main()
