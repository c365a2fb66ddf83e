"""Many texts over many processes: each reads its share, what is done is kept, and one result comes of it."""

from __future__ import annotations

import hashlib
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from clearhead.analysis.accumulate import HeadSums, nothing
from clearhead.distributed.process_group import ProcessGroup

Progress = Callable[[int, int], None]


class Job(NamedTuple):
    """One text to read. By its name what was found is found again."""

    name: str
    tally: Callable[[], HeadSums]


def run_jobs(
    jobs: Sequence[Job],
    *,
    process_group: ProcessGroup | None = None,
    keep: Path | None = None,
    progress: Progress | None = None,
) -> HeadSums:
    """Return the sum of all jobs' results, in every process.

    Args:
        process_group: the processes that share the jobs; rank r takes jobs r, r + world_size, … (default: this one).
        keep: a folder for the result of each job. After a crash only the jobs without a stored result run again.
            Call `discard_results` once the total is written.
        progress: called with the number of this process's jobs that are done, and the number of all of them.
    """
    process_group = process_group or ProcessGroup()
    share = jobs[process_group.rank :: process_group.world_size]
    if keep is not None:
        keep.mkdir(exist_ok=True)
    total = nothing()
    for index, job in enumerate(share):
        total += job.tally() if keep is None else _kept(job, keep)
        if progress is not None:
            progress(index + 1, len(share))
    return total.all_reduce(process_group)


def discard_results(keep: Path) -> None:
    """Take a folder of finished jobs away."""
    shutil.rmtree(keep, ignore_errors=True)


def _kept(job: Job, folder: Path) -> HeadSums:
    path = folder / f"{hashlib.sha256(job.name.encode()).hexdigest()[:24]}.safetensors"
    try:
        return HeadSums.load(path)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        warnings.warn(f"{error}; it is made again", stacklevel=2)
    found = job.tally()
    found.save(path)
    return found
