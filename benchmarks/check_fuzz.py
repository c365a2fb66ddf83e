"""Benchmark of `check` on random texts: errors found, errors missed, false alarms, causes named and false causes.

`python benchmarks/check_fuzz.py --texts 2000 --mistaken 1000`. It uses the generators and comparisons of
tests/explain/test_random_texts.py (random errors) and tests/explain/test_random_causes.py (usual mistakes).
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sized
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from measuring import RESULTS, write
from support import mistaken_texts, random_worked_texts  # pyright: ignore[reportMissingImports]

CAUSES = ("formulas named", "slips named", "false causes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=2000, help="texts with random errors")
    parser.add_argument("--mistaken", type=int, default=1000, help="texts with usual mistakes")
    parser.add_argument("--seed", type=int, default=1000, help="seed of the first text; the tests use seeds from 0 on")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.texts:
        random_errors(range(arguments.seed, arguments.seed + arguments.texts), arguments.output)
    if arguments.mistaken:
        usual_mistakes(range(arguments.seed, arguments.seed + arguments.mistaken), arguments.output)


def random_errors(seeds: range, output: Path) -> None:
    """Count the cells that are reported, and the causes that are named for random errors."""
    kinds: dict[str, Counter[str]] = {}
    failures = (*random_worked_texts.FAILURES, "false causes")
    for seed in seeds:
        text = random_worked_texts.random_text(seed)
        counts = random_worked_texts.outcome(text)
        if not counts["tracebacks"]:
            counts.update(mistaken_texts.random_error_outcome(text))
        _add(kinds, text.errors, counts)
        _print_failures(seed, counts, failures)
    columns = ("texts", "errors", "errors found", "carried", "carried marked", *failures[:-1], *CAUSES)
    title = f"check on {len(seeds):,} random texts with planted errors, counted in cells; causes counted once each"
    write("check-fuzz", title, _rows(kinds, columns), output)


def usual_mistakes(seeds: range, output: Path) -> None:
    """Count the usual mistakes that are found at their step, and those whose cause is named."""
    kinds: dict[str, Counter[str]] = {}
    mistakes: dict[str, Counter[str]] = {}
    for seed in seeds:
        text = mistaken_texts.mistaken_text(seed)
        counts, named = mistaken_texts.mistaken_outcome(text)
        _add(kinds, text.injections, counts)
        for name, is_named in named:
            mistakes.setdefault(name, Counter()).update({"injected": 1, "named": int(is_named)})
        _print_failures(seed, counts, mistaken_texts.FAILURES)
    columns = ("texts", "mistakes", "found", "named", *mistaken_texts.FAILURES[:-1], *CAUSES)
    title = f"check on {len(seeds):,} random texts with usual mistakes"
    write("check-causes", title, _rows(kinds, columns), output)
    rows: list[dict[str, object]] = [{"mistake": name, **mistakes[name]} for name in sorted(mistakes)]
    write("check-causes-by-mistake", f"{title}, by mistake", rows, output)


def _add(kinds: dict[str, Counter[str]], errors: Sized, counts: Counter[str]) -> None:
    count = len(errors)
    for kind in (f"{count} error{'' if count == 1 else 's'}", "all"):
        kinds.setdefault(kind, Counter()).update(counts)


def _rows(kinds: dict[str, Counter[str]], columns: tuple[str, ...]) -> list[dict[str, object]]:
    return [{"texts with": kind, **{column: kinds[kind][column] for column in columns}} for kind in sorted(kinds)]


def _print_failures(seed: int, counts: Counter[str], names: tuple[str, ...]) -> None:
    failed = {name: counts[name] for name in names if counts[name]}
    if failed:
        print(f"seed {seed}: {failed}", flush=True)


if __name__ == "__main__":
    main()
