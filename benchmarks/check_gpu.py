"""Run the GPU tests, and a few of them under compute-sanitizer, and write the results to a JSON file."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from clearhead._utils.files import write_text
from measuring import RESULTS, machine

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


def last_line(command: list[str], wanted: str) -> dict[str, object]:
    """Run a command and return its exit status and the last output line that contains `wanted`."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout[-4000:], done.stderr[-2000:], sep="\n", flush=True)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if wanted in line]
    return {"command": " ".join(command[1:]), "status": done.returncode, "said": lines[-1].strip() if lines else ""}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for gpu-checks.json")
    parser.add_argument("--processes", type=int, default=14, help="number of pytest-xdist workers")
    arguments = parser.parse_args()
    results = {"machine": machine()}
    results["tests"] = last_line([*TESTS, "-p", "xdist", "-n", str(arguments.processes)], "passed")
    target = arguments.output / "gpu-checks.json"
    write_text(target, json.dumps(results, indent=1) + "\n")
    checker = ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9"]
    results["memcheck"] = last_line([*checker, *TESTS, "-k", SMALL], "ERROR SUMMARY")
    write_text(target, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
