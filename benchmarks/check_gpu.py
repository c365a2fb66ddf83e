"""Check the compiled kernels on this GPU and write the results to a JSON file.

Without `--random`: the GPU tests, and a few of them under compute-sanitizer. With `--random N`: N random problems, each
compared with float64: output, log-sum-exp, gradients, rows, statistics, heatmaps and largest weights. With `--hopper`,
only output, log-sum-exp, column and row sums and largest weights, by the kernels for Hopper GPUs.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from clearhead._utils.files import write_text
from measuring import RESULTS, machine

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
TESTS = [
    sys.executable,
    "-m",
    "pytest",
    "-m",
    "gpu",
    "tests/ops/test_on_gpu.py",
    "tests/weights/test_on_gpu.py",
    "tests/watching/test_watch_on_gpu.py",
    "tests/gpu/test_paged_scores.py",
    "tests/gpu/test_serving.py",
    "tests/gpu/test_decoding_graphs.py",
    "tests/gpu/test_sweep.py",
    "tests/gpu/test_forward.py",
    "tests/gpu/test_topk.py",
    "-q",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:benchmark",
]
SMALL = (
    "odd or few or cuda_graph"  # padded widths and rows by pointers; split keys and a bias; the sweep of Hopper GPUs
)
LONGEST = 2000  # queries or keys


def last_line(command: list[str], wanted: str) -> dict[str, object]:
    """Run a command and return its exit status and the last output line that contains `wanted`."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout[-4000:], done.stderr[-2000:], sep="\n", flush=True)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if wanted in line]
    return {"command": " ".join(command[1:]), "status": done.returncode, "said": lines[-1].strip() if lines else ""}


def check_family(seed: int, count: int) -> list[tuple[str, str]]:
    """Check problems of one random family; return the kind of each result and, for a failure, its description."""
    from support.random_checks import check  # pyright: ignore[reportMissingImports]
    from support.random_problems import Family, Problem  # pyright: ignore[reportMissingImports]

    family = Family.draw(random.Random(seed))
    return check_problems((Problem.draw(family, seed * 1000 + index, "cuda", LONGEST) for index in range(count)), check)


def check_hopper(seed: int, count: int) -> list[tuple[str, str]]:
    """Check problems of the kernels for Hopper GPUs, also those that are too small to choose them."""
    from clearhead.ops.hopper import forward, sweep, topk
    from support import random_hopper  # pyright: ignore[reportMissingImports]

    def check(problem: Any) -> None:
        random_hopper.check_output(problem)
        random_hopper.check_statistics(problem)
        random_hopper.check_top(problem)

    sweep.MIN_CELLS, topk.MIN_CELLS, forward.MIN_CELLS = 0, 0, {}
    return check_problems((random_hopper.draw(seed * 1000 + index) for index in range(count)), check)


def check_problems(problems: Iterable[Any], check: Callable[[Any], None]) -> list[tuple[str, str]]:
    import torch

    results = []
    for problem in problems:
        try:
            check(problem)
            results.append(("right", ""))
        except AssertionError as error:
            results.append(("wrong", f"{error}: {problem.describe()}"))
        except Exception as error:
            results.append(("crashed", f"{type(error).__name__}: {error}: {problem.describe()}"))
    torch.cuda.empty_cache()
    return results


def check_random(
    check: Callable[[int, int], list[tuple[str, str]]],
    count: int,
    per_family: int,
    seed: int,
    processes: int,
    target: Path,
) -> None:
    """Check random problems in several processes, because compiling takes most of the time.

    The file is written after each family, so that an interrupted run keeps its results.
    """
    start = time.perf_counter()
    kinds: Counter[str] = Counter()
    failures: list[str] = []
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        seeds = [seed * 100_000 + index for index in range(-(-count // per_family))]
        jobs = {pool.submit(check, family, per_family): family for family in seeds}
        for done, job in enumerate(as_completed(jobs), 1):
            try:
                results = job.result()
            except Exception as error:  # in drawing a problem, or because the process died
                results = [("crashed", f"family {jobs[job]}: {error!r}")]
            kinds.update(kind for kind, _ in results)
            failures += [text for _, text in results if text]
            found = {
                "problems": kinds.total(),
                "families": done,
                "right": kinds["right"],
                "wrong": kinds["wrong"],
                "crashed": kinds["crashed"],
                "seed": seed,
                "seconds": round(time.perf_counter() - start),
            }
            write_text(target, json.dumps({"machine": machine(), **found, "failures": failures}, indent=1) + "\n")
            print(*(f"{name} {value}" for name, value in found.items()), flush=True)
    for text in failures[:10]:
        print(text[:600])
    sys.exit(1 if failures else 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for the JSON file")
    parser.add_argument("--processes", type=int, default=14, help="number of processes")
    parser.add_argument("--random", type=int, metavar="N", help="check N random problems instead of running the tests")
    parser.add_argument("--hopper", action="store_true", help="with --random: the kernels for Hopper GPUs")
    parser.add_argument("--per-family", type=int, default=12, help="random problems that share compiled kernels")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random problems")
    arguments = parser.parse_args()
    if arguments.random is not None:
        check, name = (check_hopper, "random-hopper") if arguments.hopper else (check_family, "random")
        target = arguments.output / f"gpu-{name}-{arguments.seed}.json"
        check_random(check, arguments.random, arguments.per_family, arguments.seed, arguments.processes, target)
        return
    results: dict[str, dict[str, object]] = {"machine": machine()}
    results["tests"] = last_line([*TESTS, "-p", "xdist", "-n", str(arguments.processes)], "passed")
    target = arguments.output / "gpu-checks.json"
    write_text(target, json.dumps(results, indent=1) + "\n")
    # cuda.bindings looks up functions of newer drivers, which fails without harm
    checker = ["compute-sanitizer", "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "9"]
    results["memcheck"] = last_line([*checker, *TESTS, "-k", SMALL], "ERROR SUMMARY")
    write_text(target, json.dumps(results, indent=1) + "\n")
    sys.exit(1 if results["tests"]["status"] or results["memcheck"]["status"] else 0)


if __name__ == "__main__":
    main()
