"""Jobs over processes, of which one dies the first time: `torchrun tests/dying.py FOLDER`."""

import os
import signal
import sys
import time
from pathlib import Path

import torch

from clearhead.analysis.accumulate import Tally
from clearhead.analysis.resumable import Job, added_up, forget
from clearhead.distributed.process_group import processes

folder = Path(sys.argv[1])
keep, died = folder / "parts", folder / "died"


def job(number: int) -> Job:
    def tally() -> Tally:
        if number == 3 and not died.exists():
            died.touch()
            time.sleep(1)  # until the others are done with theirs
            os.kill(os.getpid(), signal.SIGKILL)
        (folder / f"done-{number}-{time.time_ns()}").touch()
        return Tally("a model", {"encoder": [1]}, {"encoder.sums.x": torch.tensor([float(number)]).double()})

    return Job(f"job {number}", tally)


with processes(torch.device("cpu")) as together:
    total = added_up([job(number) for number in range(6)], together=together, keep=keep)
    if together.first:
        (folder / "result").write_text(str(total.sums["encoder.sums.x"].item()))
        forget(keep)
