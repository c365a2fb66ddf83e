"""Resuming: a run that is interrupted, however rudely, ends as one that was not."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from clearhead.cli import app
from clearhead.translation import (
    Config,
    RunDirectory,
    TrainingCallbacks,
    _trainer,
    from_files,
    train,
)
from clearhead.translation.data._batching import batch_indices, collate
from support.toy_training import (
    EPOCH_STEPS,
    TINY,
    TOML,
    assert_same,
    changed,
    checkpoint_state,
    copying,
    stop_run,
    weights,
    written_columns,
)


@pytest.fixture(scope="module")
def complete_run(tmp_path_factory):
    """A run that nobody interrupted."""
    run = RunDirectory(tmp_path_factory.mktemp("runs") / "whole")
    train(copying(), TINY, run)
    return run


class TestResuming:
    def test_the_toy_has_more_than_one_epoch(self):
        assert 1 < EPOCH_STEPS < TINY.training.steps
        assert EPOCH_STEPS % TINY.training.validate_every

    @pytest.mark.parametrize("at", [1, EPOCH_STEPS, EPOCH_STEPS + 2])
    def test_stopped_politely(self, complete_run, tmp_path, monkeypatch, at):
        """In the first step, at the end of an epoch, and within one."""
        run = RunDirectory(tmp_path / "run")
        before = signal.getsignal(signal.SIGINT)
        messages = stop_run(run, at, monkeypatch)
        assert messages == [f"stopped at step {at}, which is saved; --resume goes on from there"]
        assert checkpoint_state(run)["step"] == at
        assert signal.getsignal(signal.SIGINT) is before
        resumed = []
        train(copying(), TINY, run, resume=True, callbacks=TrainingCallbacks(on_message=resumed.append))
        assert resumed == [f"resumed at step {at}"]
        assert_same(run, complete_run)

    def test_asked_to_stop_in_the_last_step_it_comes_to_its_end(self, complete_run, tmp_path, monkeypatch):
        def collating(rows):
            signal.raise_signal(signal.SIGINT)
            return collate(rows)

        run = RunDirectory(tmp_path / "run")
        monkeypatch.setattr(_trainer, "collate", collating)
        train(copying(), changed(steps=1, validate_every=1), run)
        assert [line["step"] for line in run.metrics()] == [0, 1]

    def test_stopped_by_a_kill_that_can_be_heard(self, complete_run, tmp_path, monkeypatch):
        run = RunDirectory(tmp_path / "run")
        stop_run(run, 5, monkeypatch, signal.SIGTERM)
        train(copying(), TINY, run, resume=True)
        assert_same(run, complete_run)

    def test_what_a_killed_process_left_half_written_is_removed(self, tmp_path, monkeypatch):
        run = RunDirectory(tmp_path / "run")
        stop_run(run, 3, monkeypatch)
        names = ["config.json", "tokenizer.json", "metrics.jsonl", "best.safetensors", "last.safetensors"]
        for name in (".new.safetensors", ".tmpaB3dE9", ".config.json.swp", *(f".{name}.k1ll3d__" for name in names)):
            (run.folder / name).write_bytes(b"half")
        (run.folder / ".best.safetensors.c0ffee12-1.abcdefgh.tmp").mkdir()
        (run.folder / ".best.safetensors.c0ffee12-1.abcdefgh.tmp" / "best.safetensors").write_bytes(b"half")
        train(copying(), TINY, run, resume=True)
        assert [path.name for path in run.folder.glob(".*")] == [".config.json.swp"]  # an editor's, not ours

    def test_what_a_killed_beginning_left_is_removed(self, tmp_path):
        run = RunDirectory(tmp_path / "run")
        run.folder.mkdir()
        (run.folder / ".tokenizer.json.k1ll3d__").write_bytes(b"half")
        train(copying(), changed(steps=1), run)
        assert not list(run.folder.glob(".*"))

    def test_interrupted_twice(self, complete_run, tmp_path, monkeypatch):
        run = RunDirectory(tmp_path / "run")
        stop_run(run, 3, monkeypatch)

        def fail(metrics):
            raise RuntimeError("the lights went out")

        with pytest.raises(RuntimeError, match="lights"):
            train(copying(), TINY, run, resume=True, callbacks=TrainingCallbacks(on_validation=fail))
        assert [line["step"] for line in run.metrics()] == [0, 4]  # measured, but the checkpoint is of step 3
        train(copying(), TINY, run, resume=True)
        assert_same(run, complete_run)

    def test_a_second_signal_ends_it_at_once(self, tmp_path, monkeypatch):
        def collating(rows):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(_trainer, "collate", collating)
        run = RunDirectory(tmp_path / "run")
        with pytest.raises(KeyboardInterrupt):
            train(copying(), TINY, run)
        assert checkpoint_state(run)["step"] == 0

    def test_killed_before_any_rename(self, tmp_path, monkeypatch):
        """Files change by renaming alone: a run that ends just before any of these can be resumed, or begun anew."""
        data, config = copying(10, 2), changed(steps=4, validate_every=2)
        complete_run = RunDirectory(tmp_path / "whole")
        rename, renamed = Path.replace, []
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", lambda self, to: (renamed.append(Path(to).name), rename(self, to))[1])
            train(data, config, complete_run)
        assert renamed[:2] == ["tokenizer.json", "config.json"]
        assert {"best.safetensors", "last.safetensors", "previous.safetensors", "metrics.jsonl"} <= set(renamed)

        class Killed(BaseException):
            pass

        for count, name in enumerate(renamed):
            left = [count]

            def replace(self, to, left=left):
                if not left[0]:
                    raise Killed
                left[0] -= 1
                return rename(self, to)

            run = RunDirectory(tmp_path / f"{count}-{name}")
            with monkeypatch.context() as patch:
                patch.setattr(Path, "replace", replace)
                patch.setattr(Path, "unlink", lambda self, missing_ok=False: None)  # who is killed does not tidy up
                with pytest.raises(Killed):
                    train(data, config, run)
            if count < 2:
                with pytest.raises(FileNotFoundError, match="no run in it"):
                    train(data, config, run, resume=True)
            train(data, config, run, resume=count >= 2)
            assert_same(run, complete_run)

    def test_kill_9(self, tmp_path):
        """A real process, in its second epoch or later, that nobody asked."""
        columns = written_columns(tmp_path / "copies.tsv")
        (tmp_path / "tiny.toml").write_text(TOML.replace("steps = 12", "steps = 60"))
        config = Config.from_file(tmp_path / "tiny.toml")
        complete_run, run = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "run")
        data = from_files([columns], [], config)
        assert len(batch_indices(data.epoch(0), config.training.batch_tokens, (0, 0))) < 20
        train(data, config, complete_run)
        arguments = ["--data", columns, "--config", str(tmp_path / "tiny.toml"), "--output", str(run.folder)]
        process = subprocess.Popen(
            [sys.executable, "-m", "clearhead", "train", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            while process.poll() is None and (not run.metrics() or run.metrics()[-1]["step"] < 20):
                time.sleep(0.001)
        finally:
            process.kill()
            output = process.communicate()[0].decode()
        assert process.returncode == -signal.SIGKILL, output
        assert 20 <= run.metrics()[-1]["step"] < 60
        result = CliRunner().invoke(app, ["train", "--data", columns, "--resume", "--output", str(run.folder)])
        assert result.exit_code == 0, result.output
        assert "resumed at step " in result.stderr
        assert_same(run, complete_run)

    def test_a_finished_run_is_left_as_it_is(self, complete_run):
        before = {path.name: path.read_bytes() for path in complete_run.folder.iterdir()}
        model = train(copying(), TINY, complete_run, resume=True)
        assert {path.name: path.read_bytes() for path in complete_run.folder.iterdir()} == before
        assert all(
            torch.equal(tensor, weights(complete_run.folder)["best"][n]) for n, tensor in model.state_dict().items()
        )

    def test_what_is_refused(self, complete_run, tmp_path):
        with pytest.raises(ValueError, match="whole: there is a run in it already; resume it, or choose another"):
            train(copying(), TINY, complete_run)
        with pytest.raises(ValueError, match=r"the run began with other data \(copying\); give it the same"):
            train(replace(copying(), fingerprint=18), TINY, complete_run, resume=True)
        with pytest.raises(FileNotFoundError, match="nothing: no run in it"):
            train(copying(), TINY, RunDirectory(tmp_path / "nothing"), resume=True)
        with pytest.raises(ValueError, match=r"dtype is torch.float16; expected torch.float32 or torch.bfloat16"):
            train(copying(), TINY, RunDirectory(tmp_path / "half"), dtype=torch.float16)
        assert not list(tmp_path.iterdir())
