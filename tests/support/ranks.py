"""Pool of processes in a gloo process group, started once for many tests."""

import os
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context

import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import DeviceMesh

TIMEOUT = 120  # seconds; the machine may be busy


class Ranks:
    """Pool of ranks. `run` calls a function on the first `count` of them."""

    def __init__(self, world: int) -> None:
        context = get_context("spawn")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._pipes, self._processes = [], []
        for rank in range(world):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(rank, world, port, there), daemon=True)
            process.start()
            self._pipes.append(here)
            self._processes.append(process)

    def run(self, count: int, function: Callable, *arguments: object) -> list:
        """Call `function(mesh, *arguments)` on `count` ranks and return their results. Raise if a rank fails."""
        for pipe in self._pipes[:count]:
            pipe.send((count, function, arguments))
        answers = []
        for rank, pipe in enumerate(self._pipes[:count]):
            assert pipe.poll(TIMEOUT), f"rank {rank} did not answer in {TIMEOUT} seconds"
            answers.append(pipe.recv())
        errors = [f"rank {rank}:\n{text}" for rank, (succeeded, text) in enumerate(answers) if not succeeded]
        assert not errors, "\n".join(errors)
        return [answer for _, answer in answers]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(10)


@contextmanager
def started(world: int) -> Iterator[Ranks]:
    ranks = Ranks(world)
    try:
        yield ranks
    finally:
        ranks.close()


def _work(rank: int, world: int, port: int, pipe) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    distributed.init_process_group("gloo", rank=rank, world_size=world)
    groups = {count: distributed.new_group(list(range(count))) for count in range(1, world + 1)}
    while (job := pipe.recv()) is not None:
        count, function, arguments = job
        mesh = DeviceMesh.from_group(groups[count], "cpu")
        try:
            pipe.send((True, function(mesh, *arguments)))
        except Exception:
            pipe.send((False, traceback.format_exc()))
    distributed.destroy_process_group()


def assert_near(actual: Tensor, expected: Tensor, scale: float = 1.0) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-5 * scale, rtol=1e-5)
