"""Measurements in separate processes, which prepare in parallel and then measure one after another."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from gpu_timing import Row, shortened

MAX_SECONDS = 240.0  # for preparing, and again for measuring
MAX_PREPARING = 16
Job = TypeVar("Job")
Measure = Callable[[], list[Row]]


def measure_in_turn(
    jobs: Sequence[Job],
    prepare: Callable[[Job], Measure],
    max_seconds: float = MAX_SECONDS,
    max_preparing: int = MAX_PREPARING,
) -> Iterator[tuple[Job, list[Row] | str]]:
    """Yield each job with its rows, or with the text of its error.

    The first job measures when all are prepared, and the others wait meanwhile, so that nothing else uses CPU or GPU.

    Args:
        jobs: what to measure, each in a new process.
        prepare: a function of a module, which builds and warms up everything, and returns the measurement.
        max_seconds: a process that prepares or measures for longer is killed.
        max_preparing: number of processes that prepare at the same time.
    """
    # Processes inherit it. Otherwise, each would start a pool of compiling processes for all cores.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    workers: list[_Worker] = []
    preparing: list[_Worker] = []
    try:
        while preparing or len(workers) < len(jobs):
            while len(workers) < len(jobs) and len(preparing) < max_preparing:
                workers.append(_Worker(prepare, jobs[len(workers)], max_seconds))
                preparing.append(workers[-1])
            wait([worker.connection for worker in preparing], timeout=1)
            preparing = [worker for worker in preparing if not worker.is_prepared()]
        for job, worker in zip(jobs, workers, strict=True):
            yield job, worker.measure()
    finally:
        for worker in workers:
            worker.kill()


class _Worker:
    """Process that prepares one job and then waits until it may measure."""

    def __init__(self, prepare: Callable[[Any], Measure], job: object, max_seconds: float) -> None:
        context = get_context("spawn")
        self.job, self.max_seconds, self.start = job, max_seconds, time.monotonic()
        self.error: str | None = None
        self.connection, other_end = context.Pipe()
        # daemon: the interpreter does not wait for it at exit
        self.process = context.Process(target=_serve, args=(other_end, prepare, job), daemon=True)
        self.process.start()
        other_end.close()  # the end of the process then closes the pipe, which `receive` detects

    def is_prepared(self) -> bool:
        """Return whether the process is ready or has failed."""
        seconds = time.monotonic() - self.start
        if not self.connection.poll() and seconds < self.max_seconds:
            return False
        message = self.receive("ready", 0)
        self.error = None if message is None else str(message)
        print(f"{self.job}: {self.error or 'ready'} ({seconds:.0f} s)", flush=True)
        return True

    def measure(self) -> list[Row] | str:
        """Let the process measure, and end it; return its rows, or the text of its error."""
        if self.error is not None:
            return self.error
        result = self.receive("measured", self.max_seconds, start=True)
        self.kill()
        return result

    def receive(self, state: str, seconds: float, start: bool = False) -> Any:
        """Return the next message of the process, or the text of an error if it sends nothing."""
        try:
            if start:
                self.connection.send(None)
            if self.connection.poll(seconds):
                return self.connection.recv()
        except (EOFError, OSError):
            self.process.join(10)
            return f"the process ended with exit code {self.process.exitcode}"
        self.kill()
        return f"not {state} within {self.max_seconds:.0f} s"

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def _serve(connection: Connection, prepare: Callable[[Any], Measure], job: object) -> None:
    """Send None when ready, wait for permission, then send the rows; send the text of an error instead of either."""
    try:
        measure = prepare(job)
        connection.send(None)
        connection.recv()
        connection.send(measure())
    except Exception as error:
        traceback.print_exc()
        connection.send(shortened(error))
