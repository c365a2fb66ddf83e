"""What the benchmarks share: interleaved timing, the machine's description, and results as JSON and a table."""

from __future__ import annotations

import json
import platform
import random
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

import torch

import clearhead
from clearhead._utils.files import write_text

RESULTS = Path(__file__).parent / "results"


def interleaved(calls: Mapping[str, Callable[[], object]], rounds: int, repeats: int = 1) -> dict[str, float]:
    """Seconds each call takes: all of them in turn, `rounds` times, and the shortest of each.

    Taking turns lets a slow spell of a shared machine hit all of them; the minimum is what the code can do. The order
    is drawn anew each time, because a call finds the caches and the heap as the one before has left them.
    """
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    shuffled = random.Random(0)
    for _ in range(rounds):
        for name, call in shuffled.sample(list(calls.items()), len(calls)):
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            best[name] = min(best[name], (time.perf_counter() - start) / repeats)
    return best


def machine() -> dict[str, object]:
    """Where and with what the numbers were made."""
    name = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    gpu = {"gpu": torch.cuda.get_device_name(), "triton": version("triton")} if torch.cuda.is_available() else {}
    return {
        "clearhead": clearhead.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": name,
        "threads": torch.get_num_threads(),
        **gpu,
        "date": time.strftime("%Y-%m-%d"),
    }


def write(name: str, title: str, rows: list[dict[str, object]], folder: Path = RESULTS) -> None:
    """`name.json` in a folder and, for reading, `name.md`; the table is printed too."""
    folder.mkdir(exist_ok=True)
    about = machine()
    columns = list(rows[0])
    lines = [f"# {title}", "", ", ".join(f"{key} {value}" for key, value in about.items()), ""]
    lines += ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(str(row[column]) for column in columns) + " |" for row in rows]
    table = "\n".join(lines) + "\n"
    write_text(folder / f"{name}.json", json.dumps({"machine": about, "rows": rows}, indent=1) + "\n")
    write_text(folder / f"{name}.md", table)
    print(table)
