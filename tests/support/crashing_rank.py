"""Jobs on several ranks, one of which is killed in the first run: `torchrun tests/support/crashing_rank.py FOLDER`."""

import os
import signal
import sys
import time
from pathlib import Path

import torch

from clearhead.analysis.accumulate import HeadSums
from clearhead.analysis.resumable import Job, discard_results, run_jobs
from clearhead.distributed.process_group import init_process_group

folder = Path(sys.argv[1])
keep, death_mark = folder / "parts", folder / "died"


def job(index: int) -> Job:
    def compute_sums() -> HeadSums:
        if index == 3 and not death_mark.exists():
            death_mark.touch()
            time.sleep(1)  # until the other ranks have finished their jobs
            os.kill(os.getpid(), signal.SIGKILL)
        (folder / f"done-{index}-{time.time_ns()}").touch()
        return HeadSums("a model", {"encoder": [1]}, {"encoder.sums.x": torch.tensor([float(index)]).double()})

    return Job(f"job {index}", compute_sums)


with init_process_group(torch.device("cpu")) as process_group:
    total = run_jobs([job(index) for index in range(6)], process_group=process_group, results_folder=keep)
    if process_group.is_main:
        (folder / "result").write_text(str(total.sums["encoder.sums.x"].item()))
        discard_results(keep)
