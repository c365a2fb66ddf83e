"""Damage at random places and death at every file operation: nothing wrong is read, nothing is lost.

`pytest -m attack -s tests/_utils/test_damaged_files.py` prints what was tried and what came of it.
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
from support.toy_training import TINY, TOML, assert_same, changed, checkpoint_state, copying, written_columns

pytestmark = pytest.mark.attack
FLIPS = 400
DATA, CONFIG = copying(10, 2), changed(steps=2, validate_every=2)


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
    """Return the message of a refusal, "" if there was none."""
    try:
        action()
    except (ValueError, OSError) as error:
        return str(error)
    return ""


class TestFlips:
    @pytest.mark.parametrize("kind", ["checkpoint", "best", "recording", "weights", "tally"])
    def test_readers_refuse_every_flip(self, kind, whole, tmp_path):
        run = RunDirectory(tmp_path)
        path, read = {
            "checkpoint": (tmp_path / "last.safetensors", lambda: checkpoint(run)),
            "best": (tmp_path / "best.safetensors", run.check_best),
            "recording": (tmp_path / "r", lambda: Recording.load(path)),
            "weights": (tmp_path / "w", lambda: AttentionWeights.load(path)),
            "tally": (tmp_path / "t", lambda: HeadSums.load(path)),
        }[kind]
        if kind in ("checkpoint", "best"):
            path.write_bytes((whole.folder / path.name).read_bytes())
        elif kind == "tally":
            HeadSums("a model", {"encoder": [2]}, {"x": torch.randn(300).double()}).save(path)
        else:
            (recording(8) if kind == "recording" else weights_of(torch.eye(9)[None])).save(path)
        contents = path.read_bytes()
        read()
        drawn, found = random.Random(kind), Counter()
        for part, where in zip(("header", "data"), places(contents, FLIPS), strict=True):
            for place in where:
                path.write_bytes(flipped(contents, place, drawn.randrange(8)))
                said = refusal(read)
                found[part if said else f"{part}, not noticed"] += 1
                assert "\n" not in said
        print(f"\nflips in a {kind}: {dict(found)}")
        assert set(found) == {"header", "data"}

    def test_a_run_ends_as_if_nothing_had_been_flipped(self, tmp_path):
        """Stopped at step 6, damaged, and resumed: from the checkpoint before, to the same weights."""
        whole, stopped = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "stopped")
        train(copying(), TINY, whole)

        def stop(metrics):
            if metrics["step"] == 8:
                signal.raise_signal(signal.SIGTERM)

        with pytest.raises(TrainingStopped):
            train(copying(), TINY, stopped, callbacks=TrainingCallbacks(on_validation=stop))
        contents = (stopped.folder / "last.safetensors").read_bytes()
        header, data = places(contents, 20)
        for number, place in enumerate([*header[:8], *data]):
            run, said = RunDirectory(tmp_path / str(number)), []
            run.folder.mkdir()
            for path in stopped.folder.iterdir():
                (run.folder / path.name).write_bytes(path.read_bytes())
            (run.folder / "last.safetensors").write_bytes(flipped(contents, place, number % 8))
            train(copying(), TINY, run, resume=True, callbacks=TrainingCallbacks(on_message=said.append))
            assert said[0].startswith(f"{run.folder / 'last.safetensors'}: ")
            assert_same(run, whole)
        print(f"\nresumed with a flip: 8 in the header, {len(data)} in the data, all with the same weights")

    def test_kept_statistics(self, tmp_path):
        def job():
            return Job("a text", lambda: HeadSums("m", {"encoder": [1]}, {"x": torch.arange(40).double()}))

        expected = run_jobs([job()], results_folder=tmp_path / "keep")
        (path,) = (tmp_path / "keep").iterdir()
        contents = path.read_bytes()
        header, data = places(contents, 100)
        for place in header + data:
            path.write_bytes(flipped(contents, place))
            with pytest.warns(UserWarning, match="it is computed again"):
                found = run_jobs([job()], results_folder=tmp_path / "keep")
            assert torch.equal(found.sums["x"], expected.sums["x"])
            assert path.read_bytes() == contents
        print(f"\nflips in kept statistics: {len(header)} in the header, {len(data)} in the data, all made again")

    @pytest.mark.parametrize("name", ["metrics.jsonl", "config.json", "tokenizer.json"])
    def test_text_files_are_refused_in_one_line_or_harmless(self, name, whole, tmp_path):
        run, found, drawn = RunDirectory(tmp_path / "run"), Counter(), random.Random(name)
        run.folder.mkdir()
        for path in whole.folder.iterdir():
            (run.folder / path.name).write_bytes(path.read_bytes())
        contents = (run.folder / name).read_bytes()
        for _ in range(60):
            (run.folder / name).write_bytes(flipped(contents, drawn.randrange(len(contents)), drawn.randrange(8)))
            said = refusal(lambda: train(DATA, run.read()[0], run, resume=True))
            found["refused" if said else "went on"] += 1
            assert "\n" not in said
        print(f"\nflips in {name}: {dict(found)}")
        assert found.total() == 60


def names(folder):
    return sorted(path.name for path in folder.iterdir())


class TestCrashes:
    def test_a_run_that_dies_at_any_file_operation(self, whole, tmp_path, monkeypatch):
        """And dies again while it is resumed, at another one."""
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
            f"\na run: died at {len(points)} file operations ({dict(Counter(points))}), {again} times again while"
            f" resumed; {left} left temporary files, 0 of them after the next run; 0 differ"
        )

    def test_a_recording_that_dies_at_any_file_operation(self, tmp_path, monkeypatch):
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
        print(
            f"\na recording: died at {len(points)} file operations; the file was {dict(kept)}; 0 temporary files left"
        )


def test_two_processes_in_one_folder(tmp_path):
    """The second is refused; killed without warning, the first leaves nothing in the way."""
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
