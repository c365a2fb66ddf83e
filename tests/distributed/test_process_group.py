"""Tests of the process group that torchrun's processes form."""

import os
import socket
import subprocess
import sys

import pytest

# AdamW imports parts of torch.distributed while the group exists
TRAIN_AND_LIST_THREADS = """
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from clearhead.distributed.process_group import init_process_group


def thread_names():
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        try:
            names.append(path.read_text().strip())
        except OSError:  # the thread has ended
            pass
    return names


def train():
    with init_process_group(torch.device("cpu")) as process_group:
        model = torch.nn.Linear(3, 5)
        optimizer = torch.optim.AdamW(model.parameters())
        DistributedDataParallel(model)(torch.randn(2, 3)).sum().backward()
        optimizer.step()
        assert process_group.broadcast(process_group.rank) == 0
        assert any("gloo" in name for name in thread_names())


train()
print([name for name in thread_names() if "gloo" in name])
"""


@pytest.mark.slow
def test_no_thread_of_the_group_outlives_it():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TRAIN_AND_LIST_THREADS],
            env=environment | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            output, errors = process.communicate(timeout=200)
            assert process.returncode == 0, errors
            assert output == "[]\n"
    finally:
        for process in processes:
            process.kill()
