"""Jobs over many texts and processes, with stored results so that a later call can resume."""

from __future__ import annotations

import hashlib
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from clearhead.analysis.accumulate import HeadSums
from clearhead.distributed.process_group import ProcessGroup

ProgressCallback = Callable[[int, int], None]  # called with the number of steps done and their total


class Job(NamedTuple):
    """One text to process. `name` is the key of its stored result. `label` names the text in a warning of NaN."""

    name: str
    compute: Callable[[], HeadSums]
    label: str = "a text"


def run_jobs(
    jobs: Sequence[Job],
    *,
    process_group: ProcessGroup | None = None,
    results_folder: Path | None = None,
    progress: ProgressCallback | None = None,
) -> HeadSums:
    """Return the sum of the results of all jobs, in every process.

    Args:
        jobs: jobs to run, the same list in every process.
        process_group: processes that share the jobs (default: only this process). Rank *r* runs jobs *r*,
            *r* + world_size, …
        results_folder: folder for the result of each job. After a crash, only jobs without a stored result run again.
            Call `discard_results` once the total is written.
        progress: called with the number of this process's jobs that are done, and their total.
    """
    process_group = process_group or ProcessGroup()
    share = jobs[process_group.rank :: process_group.world_size]
    if results_folder is not None:
        results_folder.mkdir(exist_ok=True)
    total, warned = HeadSums.empty(), False
    for index, job in enumerate(share):
        result = job.compute() if results_folder is None else _load_or_compute(job, results_folder)
        warned = warned or result.warn_of_nan(job.label)
        total += result
        if progress is not None:
            progress(index + 1, len(share))
    return total.all_reduce(process_group)


def discard_results(results_folder: Path) -> None:
    """Remove a folder of stored results."""
    shutil.rmtree(results_folder, ignore_errors=True)


def _load_or_compute(job: Job, folder: Path) -> HeadSums:
    path = folder / f"{hashlib.sha256(job.name.encode()).hexdigest()[:24]}.safetensors"
    try:
        return HeadSums.load(path)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        warnings.warn(f"{error}; it is computed again", stacklevel=2)
    result = job.compute()
    result.save(path)
    return result
