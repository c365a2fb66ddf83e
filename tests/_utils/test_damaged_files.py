"""Tests with flipped bits and with crashes at every file operation: no damaged data are read, no data are lost.

`pytest -m attack -s tests/_utils/test_damaged_files.py` prints the number of attempts and their outcomes.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
import torch
from typer.testing import CliRunner

from clearhead import AttentionWeights, Recording
from clearhead.analysis.accumulate import HeadSums
from clearhead.analysis.resumable import Job, run_jobs
from clearhead.cli import app
from clearhead.recording.recording import Stack, Tokens
from clearhead.translation.model import Transformer
from clearhead.translation.run_directory import RunDirectory
from clearhead.translation.training import TrainingCallbacks, TrainingStopped, train
from support.crafted_recordings import weights_of
from support.crashes import Killed, operations
from support.damage import flipped, places
from support.toy_training import (
    TINY,
    TOML,
    assert_same,
    changed,
    checkpoint_state,
    copying,
    short_validation,
    written_columns,
)

pytestmark = pytest.mark.attack
FLIPS = 400
DATA, CONFIG = copying(10, 2), changed(steps=2, validate_every=2)


@pytest.fixture(scope="module", autouse=True)
def short_validations():
    with short_validation():
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    torch.set_num_threads(1)
    run = RunDirectory(tmp_path_factory.mktemp("runs") / "whole")
    train(DATA, CONFIG, run)
    return run


def recording(size=5):
    tokens = Tokens(tuple("abcdefgh"[:size]), (False,) * size, tuple(range(size)))
    return Recording("a model", {"encoder": Stack((weights_of(torch.eye(size)[None]),), tokens, tokens)})


def checkpoint(run):
    model = Transformer(CONFIG.model, len(DATA.vocabulary))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    return run.load_checkpoint(model, optimizer, pytest.fail)


def refusal(action):
    """Return the error message of an action, "" if it succeeds."""
    try:
        action()
    except (ValueError, OSError) as error:
        return str(error)
    return ""


class TestFlippedBits:
    @pytest.mark.parametrize("kind", ["checkpoint", "best", "recording", "weights", "head sums"])
    def test_readers_reject_every_flipped_bit(self, kind, whole, tmp_path):
        run = RunDirectory(tmp_path)
        path, read = {
            "checkpoint": (tmp_path / "last.safetensors", lambda: checkpoint(run)),
            "best": (tmp_path / "best.safetensors", run.check_best),
            "recording": (tmp_path / "r", lambda: Recording.load(path)),
            "weights": (tmp_path / "w", lambda: AttentionWeights.load(path)),
            "head sums": (tmp_path / "s", lambda: HeadSums.load(path)),
        }[kind]
        if kind in ("checkpoint", "best"):
            path.write_bytes((whole.folder / path.name).read_bytes())
        elif kind == "head sums":
            HeadSums("a model", {"encoder": [2]}, {"x": torch.randn(300).double()}).save(path)
        else:
            (recording(8) if kind == "recording" else weights_of(torch.eye(9)[None])).save(path)
        contents = path.read_bytes()
        read()
        generator, counts = random.Random(kind), Counter()
        for part, offsets in zip(("header", "data"), places(contents, FLIPS), strict=True):
            for offset in offsets:
                path.write_bytes(flipped(contents, offset, generator.randrange(8)))
                message = refusal(read)
                counts[part if message else f"{part}, not noticed"] += 1
                assert "\n" not in message
        print(f"\nflipped bits in a {kind} file: {dict(counts)}")
        assert set(counts) == {"header", "data"}

    def test_a_run_with_a_damaged_checkpoint_resumes_to_the_same_weights(self, tmp_path):
        """Resume from the previous checkpoint after the last one was damaged."""
        whole, stopped = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "stopped")
        train(copying(), TINY, whole)

        def stop(metrics):
            if metrics["step"] == 8:
                signal.raise_signal(signal.SIGTERM)

        with pytest.raises(TrainingStopped):
            train(copying(), TINY, stopped, callbacks=TrainingCallbacks(on_validation=stop))
        contents = (stopped.folder / "last.safetensors").read_bytes()
        header, data = places(contents, 20)
        for index, offset in enumerate([*header[:8], *data]):
            run, messages = RunDirectory(tmp_path / str(index)), []
            run.folder.mkdir()
            for path in stopped.folder.iterdir():
                (run.folder / path.name).write_bytes(path.read_bytes())
            (run.folder / "last.safetensors").write_bytes(flipped(contents, offset, index % 8))
            train(copying(), TINY, run, resume=True, callbacks=TrainingCallbacks(on_message=messages.append))
            assert messages[0].startswith(f"{run.folder / 'last.safetensors'}: ")
            assert_same(run, whole)
        print(f"\nresumed with flipped bits: 8 in the header, {len(data)} in the data, all with the same weights")

    def test_damaged_results_of_jobs_are_computed_again(self, tmp_path):
        def job():
            return Job("a text", lambda: HeadSums("m", {"encoder": [1]}, {"x": torch.arange(40).double()}))

        expected = run_jobs([job()], results_folder=tmp_path / "keep")
        (path,) = (tmp_path / "keep").iterdir()
        contents = path.read_bytes()
        header, data = places(contents, 100)
        for offset in header + data:
            path.write_bytes(flipped(contents, offset))
            with pytest.warns(UserWarning, match="it is computed again"):
                total = run_jobs([job()], results_folder=tmp_path / "keep")
            assert torch.equal(total.sums["x"], expected.sums["x"])
            assert path.read_bytes() == contents
        print(f"\nflipped bits in results: {len(header)} in the header, {len(data)} in the data, all computed again")

    @pytest.mark.parametrize("name", ["metrics.jsonl", "config.json", "tokenizer.json"])
    def test_damaged_text_files_are_rejected_in_one_line(self, name, whole, tmp_path):
        run, counts, generator = RunDirectory(tmp_path / "run"), Counter(), random.Random(name)
        run.folder.mkdir()
        for path in whole.folder.iterdir():
            (run.folder / path.name).write_bytes(path.read_bytes())
        contents = (run.folder / name).read_bytes()
        for _ in range(60):
            offset, bit = generator.randrange(len(contents)), generator.randrange(8)
            (run.folder / name).write_bytes(flipped(contents, offset, bit))
            message = refusal(lambda: train(DATA, run.read()[0], run, resume=True))
            counts["rejected" if message else "accepted"] += 1
            assert "\n" not in message
        print(f"\nflipped bits in {name}: {dict(counts)}")
        assert counts["rejected"] == 60 or name == "metrics.jsonl"  # which has no checksum


def names(folder):
    return sorted(path.name for path in folder.iterdir())


class TestCrashes:
    def test_a_run_that_crashes_at_any_file_operation_can_be_resumed(self, whole, tmp_path, monkeypatch):
        """Each run crashes a second time, at another operation, while it is resumed."""
        counted = RunDirectory(tmp_path / "counted")
        with operations(tmp_path, monkeypatch) as points:
            train(DATA, CONFIG, counted)
        assert {"save_file, whole", "write_text, whole", "fsync", "os.rename", "os.rmdir"} <= set(points)
        again, left = 0, 0
        for point in range(len(points)):
            run = RunDirectory(tmp_path / str(point))
            with operations(run.folder, monkeypatch, at=point), pytest.raises(Killed):
                train(DATA, CONFIG, run)
            left += any(name.startswith(".") for name in names(run.folder)) if run.folder.exists() else 0
            try:
                with operations(run.folder, monkeypatch, at=7 * point % 50):
                    train(DATA, CONFIG, run, resume=run.exists)
            except Killed:
                again += 1
            train(DATA, CONFIG, run, resume=run.exists)
            assert_same(run, whole)
            assert names(run.folder) == names(whole.folder), points[point]
        print(
            f"\na run: crashed at {len(points)} file operations ({dict(Counter(points))}), {again} times again while"
            f" resumed; {left} left temporary files, 0 after the next run; 0 differ"
        )

    def test_saving_a_recording_that_crashes_leaves_the_old_or_the_new_file(self, tmp_path, monkeypatch):
        path = tmp_path / "r.safetensors"
        recording(3).save(path)
        old = path.read_bytes()
        with operations(tmp_path, monkeypatch) as points:
            recording(5).save(path)
        new, kept = path.read_bytes(), Counter()
        for point in range(len(points)):
            path.write_bytes(old)
            with operations(tmp_path, monkeypatch, at=point), pytest.raises(Killed):
                recording(5).save(path)
            assert path.read_bytes() in (old, new)
            kept["old" if path.read_bytes() == old else "new"] += 1
            Recording.load(path)
            recording(5).save(path)
            assert names(tmp_path) == ["r.safetensors"]
        assert kept["old"]
        assert kept["new"]
        print(f"\na recording: crashed at {len(points)} file operations; file: {dict(kept)}; 0 temporary files left")


def test_a_second_process_in_one_folder_is_refused_until_the_first_is_killed(tmp_path):
    """The lock of a killed process does not block the next one."""
    columns = written_columns(tmp_path / "copies.tsv")
    (tmp_path / "tiny.toml").write_text(TOML.replace("steps = 12", "steps = 100000"))
    run = RunDirectory(tmp_path / "run")
    given = ["train", "--data", columns, "--output", str(run.folder)]
    process = subprocess.Popen(
        [sys.executable, "-m", "clearhead", *given, "--config", str(tmp_path / "tiny.toml")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        while process.poll() is None and not run.metrics():
            time.sleep(0.01)
        refused = CliRunner().invoke(app, [*given, "--resume"])
        assert refused.exit_code == 2
        assert f"{run.folder}: in use by process {process.pid} on " in refused.stderr
    finally:
        process.kill()
        process.communicate()
    with run.locked(resume=True):
        assert checkpoint_state(run)["step"] >= 0
    assert not [name for name in names(run.folder) if name.startswith(".")]
