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
    process_group: ProcessGroup = ProcessGroup(),  # noqa: B008, never changed
    keep: Path | None = None,
    progress: Progress = lambda done, of: None,
) -> HeadSums:
    """What all jobs come to, in every process.

    Args:
        together: the processes; each takes every so-manieth job.
        keep: a folder for what each job gives, where a later call finds it: after a crash only what was not done is
            done again. Whoever has written the result takes the folder away (`discard_results`).
        progress: called with the number of this process's jobs that are done, and that there are.
    """
    own = jobs[process_group.rank :: process_group.world_size]
    if keep is not None:
        keep.mkdir(exist_ok=True)
    total = nothing()
    for number, job in enumerate(own):
        total += job.tally() if keep is None else _kept(job, keep)
        progress(number + 1, len(own))
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
