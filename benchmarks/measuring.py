"""Helpers of the benchmarks: interleaved timing, the machine's description, and results as JSON and tables."""

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
    """Return the shortest time of each call in seconds, over `rounds` rounds of all calls.

    Interleaving spreads the load of a shared machine over all calls. The order is random in each round, because a call
    inherits the caches and the heap of the previous one.
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


def ratios_to_first(times: Mapping[str, float], targets: Mapping[str, str]) -> list[dict[str, object]]:
    """Return a row for each call but the first, which is the peer of the others."""
    peer, theirs = next(iter(times.items()))
    return [
        {"case": case, "ours_s": round(seconds, 3), "peer": peer, "peer_s": round(theirs, 3),
         "ratio": round(seconds / theirs, 3), "target": targets[case]}
        for case, seconds in times.items() if case != peer
    ]  # fmt: skip


def machine() -> dict[str, object]:
    """Return the versions, the hardware and the date of a measurement."""
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
    """Write the results to `name.json` and, as a table, to `name.md`; print the table."""
    folder.mkdir(exist_ok=True)
    about = machine()
    # rows of errors have fewer columns; those of complete rows come first
    columns = list(dict.fromkeys(column for row in sorted(rows, key=len, reverse=True) for column in row))
    lines = [f"# {title}", "", ", ".join(f"{key} {value}" for key, value in about.items()), ""]
    lines += ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(str(row.get(column, "")) for column in columns) + " |" for row in rows]
    table = "\n".join(lines) + "\n"
    write_text(folder / f"{name}.json", json.dumps({"machine": about, "rows": rows}, indent=1) + "\n")
    write_text(folder / f"{name}.md", table)
    print(table)
