"""Check the compiled kernels on this GPU and write the results to a JSON file.

Without `--random`: the GPU tests, and a few of them under compute-sanitizer. With `--random N`: N random problems, each
compared with float64: output, log-sum-exp, gradients, rows, statistics, heatmaps and largest weights.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

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
    "-q",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:benchmark",
]
SMALL = "odd or few"  # padded widths and rows by pointers; split keys and a bias
PROBLEMS_PER_FAMILY = 12  # compiled once
LONGEST = 2000  # queries or keys


def last_line(command: list[str], wanted: str) -> dict[str, object]:
    """Run a command and return its exit status and the last output line that contains `wanted`."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout[-4000:], done.stderr[-2000:], sep="\n", flush=True)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if wanted in line]
    return {"command": " ".join(command[1:]), "status": done.returncode, "said": lines[-1].strip() if lines else ""}


def check_family(seed: int, count: int) -> list[tuple[str, str]]:
    """Check problems of one random family; return the kind of each result and, for a failure, its description."""
    import torch

    from support.random_problems import Family, Problem

    family = Family.draw(random.Random(seed))
    results = []
    for index in range(count):
        problem = Problem.draw(family, seed * 1000 + index, "cuda", LONGEST)
        try:
            problem.check()
            results.append(("right", ""))
        except AssertionError as error:
            results.append(("wrong", f"{error}: {problem.describe()}"))
        except Exception as error:
            results.append(("crashed", f"{type(error).__name__}: {error}: {problem.describe()}"))
    torch.cuda.empty_cache()
    return results


def check_random(count: int, seed: int, processes: int) -> dict[str, object]:
    """Check random problems in several processes, because compiling takes most of the time."""
    start = time.perf_counter()
    families = -(-count // PROBLEMS_PER_FAMILY)
    results: list[tuple[str, str]] = []
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        jobs = [pool.submit(check_family, seed * 100_000 + index, PROBLEMS_PER_FAMILY) for index in range(families)]
        for done, job in enumerate(jobs, 1):
            try:
                results += job.result()
            except Exception as error:  # the process died
                results.append(("crashed", f"family {seed * 100_000 + done - 1}: {error!r}"))
            if done % 25 == 0:
                print(f"{done} of {families} families", dict(Counter(kind for kind, _ in results)), flush=True)
    counts = Counter(kind for kind, _ in results)
    return {
        "problems": len(results),
        "families": families,
        "seed": seed,
        "right": counts["right"],
        "wrong": counts["wrong"],
        "crashed": counts["crashed"],
        "failures": [text for _, text in results if text],
        "seconds": round(time.perf_counter() - start),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for the JSON file")
    parser.add_argument("--processes", type=int, default=14, help="number of processes")
    parser.add_argument("--random", type=int, metavar="N", help="check N random problems instead of running the tests")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random problems")
    arguments = parser.parse_args()
    results: dict[str, object] = {"machine": machine()}
    if arguments.random is not None:
        results |= check_random(arguments.random, arguments.seed, arguments.processes)
        write_text(arguments.output / f"gpu-random-{arguments.seed}.json", json.dumps(results, indent=1) + "\n")
        print({name: value for name, value in results.items() if name not in ("machine", "failures")})
        for text in results["failures"][:10]:  # pyright: ignore[reportIndexIssue]
            print(text[:600])
        return
    results["tests"] = last_line([*TESTS, "-p", "xdist", "-n", str(arguments.processes)], "passed")
    target = arguments.output / "gpu-checks.json"
    write_text(target, json.dumps(results, indent=1) + "\n")
    checker = ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9"]
    results["memcheck"] = last_line([*checker, *TESTS, "-k", SMALL], "ERROR SUMMARY")
    write_text(target, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
