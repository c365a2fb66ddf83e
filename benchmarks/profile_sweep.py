"""Profile of the two statistics kernels on a Hopper GPU by Nsight Compute (`ncu`): how busy each unit is.

It starts itself under ncu and writes gpu-sweep-profile.json and .md. One plain call with 2 heads of 128, random bf16.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from pathlib import Path

import torch

from clearhead import attention
from clearhead.ops.arguments import build_call
from clearhead.ops.hopper import sweep
from clearhead.ops.statistics import StatisticsRequest
from clearhead.ops.triton.statistics import compute_statistics
from measuring import RESULTS, write

LENGTH, HEADS, DIM = 24_576, 2, 128
ALWAYS, NEVER = 0, 2**63
KERNELS = {"sweep": ALWAYS, "_column_statistics": NEVER}
REQUESTS = {
    "column sums": StatisticsRequest(received=True),
    "column sums, entropy, distance": StatisticsRequest(received=True, entropy=True, distance=True),
}
PEAK = "avg.pct_of_peak_sustained_active"
METRICS = {
    "gpu__time_duration.sum": "microseconds",
    f"sm__pipe_tensor_op_hmma_cycles_active.{PEAK}": "tensor cores %",
    f"sm__inst_executed_pipe_xu.{PEAK}": "exponentials (XU) %",
    f"sm__inst_executed_pipe_fma.{PEAK}": "FMA %",
    f"smsp__issue_active.{PEAK}": "issue slots %",
}


def launch_all() -> None:
    """Launch every kernel with every request once, in the order of the tables above."""
    query, key, value = (torch.randn(1, HEADS, LENGTH, DIM, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    _, weights = attention(query, key, value, return_weights=True)
    call = build_call(query, key, value)
    for least in KERNELS.values():
        sweep.MIN_CELLS = least
        for request in REQUESTS.values():
            compute_statistics(call, weights.lse, request)
    torch.cuda.synchronize()


def profiled() -> list[dict[str, object]]:
    names = "|".join(f"^{name}$" for name in KERNELS)
    command = [
        "ncu",
        "--clock-control",
        "none",
        "--csv",
        "--kernel-name",
        f"regex:{names}",
        "--metrics",
        ",".join(METRICS),
    ]
    done = subprocess.run([*command, sys.executable, __file__, "--launch"], capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    rows: dict[str, dict[str, object]] = {}
    expected = [(kernel, request) for kernel in KERNELS for request in REQUESTS]
    for entry in csv.DictReader(lines):
        index = int(entry["ID"])
        kernel, request = expected[index]
        assert entry["Kernel Name"].startswith(kernel), entry
        found = rows.setdefault(entry["ID"], {"kernel": kernel, "request": request})
        value = float(entry["Metric Value"].replace(",", ""))
        if entry["Metric Unit"] == "ns":
            value /= 1000
        found[METRICS[entry["Metric Name"]]] = round(value, 1)
    return list(rows.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launch", action="store_true", help="only launch the kernels, as under ncu")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.launch:
        launch_all()
        return
    title = f"One H200: statistics of {HEADS} plain heads, {LENGTH} tokens, by ncu"
    write("gpu-sweep-profile", title, profiled(), arguments.output)


if __name__ == "__main__":
    main()
