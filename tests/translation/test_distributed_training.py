"""Tests of distributed training under torchrun: two processes equal one, and a killed run can be resumed."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from clearhead.translation.config import Config
from clearhead.translation.data._batching import batch_indices
from clearhead.translation.data.dataset import from_files
from clearhead.translation.run_directory import RunDirectory
from clearhead.translation.training import train
from support.toy_training import TOML, WORDS, weights, written_columns

pytestmark = pytest.mark.slow
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "clearhead", "train"]


def start_training(arguments):
    """Start two processes with torchrun."""
    return subprocess.Popen(
        [*TORCHRUN, *map(str, arguments), "--device", "cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def toy_run(tmp_path_factory):
    """Finished run in one process, its data arguments and its configuration, without dropout.

    One sentence is so long that it is a batch by itself: one of two processes then has no sentence.
    """
    tmp_path = tmp_path_factory.mktemp("toy")
    columns = tmp_path / "copies.tsv"
    written_columns(columns)
    long = " ".join(WORDS * 3)
    columns.write_text(f"{columns.read_text()}{long}\t{long.upper()}\n")
    valid = written_columns(tmp_path / "valid.tsv", 7)
    config = tmp_path / "tiny.toml"
    config.write_text(TOML.replace("[training]", "dropout = 0.0\n\n[training]").replace("steps = 12", "steps = 40"))
    data = from_files([str(columns)], [valid], Config.from_file(config))
    sizes = list(map(len, batch_indices(data.epoch(0), Config.from_file(config).training.batch_tokens, (0, 0))))
    assert 1 in sizes
    assert len(sizes) <= 40
    one = RunDirectory(tmp_path / "one")
    train(data, Config.from_file(config), one)
    return one, ["--data", columns, "--valid", valid], config


def assert_close_runs(two, one):
    """Check that the runs of two processes and of one have nearly equal metrics and weights."""
    for alone, shared in zip(one.metrics(), two.metrics(), strict=True):
        assert shared["step"] == alone["step"]
        assert shared.get("loss") == pytest.approx(alone.get("loss"), abs=3e-4)
        assert shared["validation"] == pytest.approx(alone["validation"], abs=3e-4)
    alone = weights(one.folder)["best"]
    for name, tensor in weights(two.folder)["best"].items():
        if not name.endswith("key.bias"):  # its exact gradient is 0; AdamW scales the rounding error up to a full step
            torch.testing.assert_close(
                tensor, alone[name], rtol=0, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
            )


def test_two_processes_train_the_same_model_as_one(toy_run, tmp_path):
    one, files, config = toy_run
    two = RunDirectory(tmp_path / "two")
    process = start_training([*files, "--config", config, "--output", two.folder])
    output, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    assert output.count("heads with a clear role") == 1  # only the main process prints
    assert_close_runs(two, one)


def test_a_run_resumes_after_each_process_was_killed(toy_run, tmp_path):
    """The run is resumed after rank 0 was killed, and again after rank 1 was killed."""
    one, files, config = toy_run
    two, reached = RunDirectory(tmp_path / "two"), 0
    process = start_training([*files, "--config", config, "--output", two.folder])
    for rank in range(2):
        while process.poll() is None and (not two.metrics() or two.metrics()[-1]["step"] < reached + 8):
            time.sleep(0.002)
        os.kill(worker(process.pid, rank), signal.SIGKILL)
        _, errors = process.communicate(timeout=200)
        assert process.returncode != 0
        assert f"rank      : {rank} (local_rank: {rank})" in errors
        if rank:
            assert_resumed_at(reached, errors)
        start, reached = reached, two.metrics()[-1]["step"]
        assert start + 8 <= reached < 40
        process = start_training([*files, "--resume", "--output", two.folder])
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    assert_resumed_at(reached, errors)
    assert_close_runs(two, one)


def assert_resumed_at(reached, errors):
    resumed = int(re.search(r"resumed at step (\d+)", errors)[1])
    assert resumed in (reached, reached - 4)  # metrics are written before the checkpoint, once per 4 steps


def worker(parent, rank):
    """Return the process id of a rank that torchrun has started."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            stat_fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
            environment = (process / "environ").read_bytes().split(b"\0")
        except OSError:  # the process has ended
            continue
        if int(stat_fields[1]) == parent and f"RANK={rank}".encode() in environment:
            return int(process.name)
    raise AssertionError(f"no process of rank {rank}")


def test_all_ranks_report_a_locked_folder(toy_run):
    one, files, _ = toy_run
    with one.locked(resume=True):
        process = start_training([*files, "--resume", "--output", one.folder])
        _, errors = process.communicate(timeout=200)
    assert process.returncode != 0
    for rank in range(2):
        assert f"clearhead (rank {rank}): {one.folder}: in use by process {os.getpid()} on " in errors
