"""Benchmark of reports: file size and time for four text lengths, compared with BertViz at 128 tokens.

`python benchmarks/report.py`. 12 layers of 12 heads on random queries and keys, without a mask, which is the worst case
for size. All layers are the same random layer, but each is computed and packed separately. BertViz gets precomputed
matrices. It is installed by pip into a temporary folder.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version

import torch

from clearhead import Recording, attention, report
from clearhead.recording.recording import Stack, Tokens
from measuring import write

LAYERS, HEADS, WIDTH = 12, 12, 64
TOKENS = (128, 512, 2048, 32_768)
BERTVIZ = "bertviz==1.4.1"
Row = dict[str, object]


def synthetic(tokens: int) -> Recording:
    query, key = (torch.randn(1, HEADS, tokens, WIDTH) for _ in range(2))
    _, weights = attention(query, key, key, return_weights=True)
    texts = Tokens(tuple(map(str, range(tokens))), (False,) * tokens, tuple(range(tokens)))
    return Recording("random", {"encoder": Stack((weights.without_values(),) * LAYERS, texts, texts)})


def row(what: str, tokens: int, job: Callable[[], str], limits: str, notes: str = "") -> Row:
    """Return a table row with the size of the page and the shortest of three runs."""
    taken, page = [], ""
    for _ in range(3):
        start = time.perf_counter()
        page = job()
        taken.append(time.perf_counter() - start)
    size = len(page.encode()) / 1e6
    return {
        "what": what,
        "tokens": tokens,
        "MB": f"{size:.1f}",
        "s": f"{min(taken):.2f}",
        "limits": limits,
        "left out": notes,
    }


def ours() -> Iterator[Row]:
    limits = {128: "", 512: "≤ 10 MB, ≤ 10 s", 2048: "", 32_768: "< 20 MB"}
    for tokens in TOKENS:
        recording = synthetic(tokens)
        notes = "; ".join(report(recording).notes)
        yield row("clearhead report", tokens, lambda recording=recording: report(recording).html, limits[tokens], notes)


def theirs(tokens: int) -> Iterator[Row]:
    recording = synthetic(tokens)
    attentions = [weights.dense() for weights in recording["encoder"].layers]
    names = list(recording["encoder"].queries.texts)
    with tempfile.TemporaryDirectory() as folder:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, BERTVIZ]
        subprocess.run(install, check=True)
        sys.path.insert(0, folder)
        for name in ("head_view", "model_view"):
            draw = getattr(importlib.import_module("bertviz"), name)
            yield row(
                f"BertViz {version('bertviz')} {name}",
                tokens,
                lambda draw=draw: draw(attentions, names, html_action="return").data,
                "",
                "scripts, which it loads from the network",
            )
        sys.path.remove(folder)


if __name__ == "__main__":
    torch.manual_seed(0)
    title = f"Reports of {LAYERS} × {HEADS} heads, random data, CPU; the shortest of three runs"
    write("report-cpu", title, [*ours(), *theirs(TOKENS[0])])
