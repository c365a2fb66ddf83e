"""Benchmark of `check` on random texts with planted errors: errors found, errors missed, false alarms.

`python benchmarks/check_fuzz.py --texts 2000`. It uses the generator and comparison of
tests/explain/test_random_texts.py.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from measuring import RESULTS, write
from support.random_worked_texts import FAILURES, outcome, random_text  # pyright: ignore[reportMissingImports]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--first", type=int, default=1000, help="seed of the first text; the tests use seeds from 0 on")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kinds: dict[str, Counter[str]] = {}
    for seed in range(arguments.first, arguments.first + arguments.texts):
        text = random_text(seed)
        counts = outcome(text)
        count = len(text.errors)
        for kind in (f"{count} error{'' if count == 1 else 's'}", "all"):
            kinds.setdefault(kind, Counter()).update(counts)
        failed = {name: counts[name] for name in FAILURES if counts[name]}
        if failed:
            print(f"seed {seed}: {failed}")
    columns = ("texts", "errors", "errors found", "carried", "carried marked", *FAILURES)
    rows: list[dict[str, object]] = [
        {"texts with": kind, **{column: kinds[kind][column] for column in columns}} for kind in sorted(kinds)
    ]
    title = f"check on {arguments.texts:,} random texts with planted errors, counted in cells"
    write("check-fuzz", title, rows, arguments.output)


if __name__ == "__main__":
    main()
