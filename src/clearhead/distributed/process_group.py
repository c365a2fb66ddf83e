"""`ProcessGroup`: the processes that torchrun starts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed.nn  # before a group exists: its functions keep the current group alive as a default argument
from torch import Tensor, distributed

from clearhead._utils.version import __version__

T = TypeVar("T")
RELEASE_SECONDS = 0.1  # many times as long as a thread waits for the GIL


def is_main_process() -> bool:
    """Return whether this process has rank 0 and so writes files and prints for all ranks."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank() == 0
    return int(os.environ.get("RANK", 0)) == 0


@dataclass(frozen=True)
class ProcessGroup:
    """Rank of this process and number of processes, with collectives that also work in a single process."""

    rank: int = 0
    world_size: int = 1

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Return the sum over all processes."""
        if self.world_size == 1:
            return tensor
        total = tensor.clone()
        distributed.all_reduce(total)
        return total

    def all_reduce_max(self, tensor: Tensor) -> Tensor:
        """Return the elementwise maximum over all processes."""
        if self.world_size == 1:
            return tensor
        largest = tensor.clone()
        distributed.all_reduce(largest, distributed.ReduceOp.MAX)
        return largest

    def any(self, condition: bool, device: torch.device) -> bool:
        """Return whether a condition holds in any process."""
        return condition if self.world_size == 1 else bool(self.all_reduce(torch.tensor(int(condition), device=device)))

    def broadcast(self, value: T) -> T:
        """Return the value of rank 0 on all ranks."""
        if self.world_size == 1:
            return value
        box = [value]
        distributed.broadcast_object_list(box)
        return box[0]

    def run_on_main(self, action: Callable[[], T]) -> T:
        """Run `action` on rank 0; return its result, or raise its error, on all ranks."""
        if self.world_size == 1:
            return action()
        result: T | None = None
        error: Exception | None = None
        if self.is_main:
            try:
                result = action()
            except Exception as caught:
                error = caught
        result, error = self.broadcast((result, error))
        if error is not None:
            raise error
        return result  # pyright: ignore[reportReturnType]

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in the order of ranks."""
        if self.world_size == 1:
            return [value]
        values: list[T] = [value] * self.world_size
        distributed.all_gather_object(values, value)
        return values


def current_process_group() -> ProcessGroup:
    """Return the process group that torch.distributed was initialized with; one process if it was not."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return ProcessGroup()
    return ProcessGroup(distributed.get_rank(), distributed.get_world_size())


@contextmanager
def init_process_group(device: torch.device) -> Iterator[ProcessGroup]:
    """Initialize torch.distributed under torchrun; without torchrun yield a group of one process.

    gloo's threads end with the last reference to the group. A thread that outlives the interpreter aborts the process.
    """
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    if world_size == 1:
        yield ProcessGroup()
        return
    if device.type == "cuda" and device.index is None:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))  # one GPU per process
    # gloo as well as NCCL: statistics are reduced on the CPU
    distributed.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    try:
        process_group = ProcessGroup(distributed.get_rank(), world_size)
        _check_versions(process_group)
        yield process_group
    finally:
        # A thread of gloo takes the GIL to release the tensors of the last collective. The group's destructor joins
        # that thread while it holds the GIL, which would deadlock; sleeping releases the GIL.
        time.sleep(RELEASE_SECONDS)
        distributed.destroy_process_group()


def _check_versions(process_group: ProcessGroup) -> None:
    """Raise if ranks have different versions, whose collectives may differ and deadlock."""
    versions = process_group.all_gather(f"clearhead {__version__}, torch {torch.__version__}")
    others = [(rank, version) for rank, version in enumerate(versions) if version != versions[0]]
    if others:
        rank, version = others[0]
        raise ValueError(f"rank {rank} has {version}, but rank 0 has {versions[0]}; expected the same on all ranks")
