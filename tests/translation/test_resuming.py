"""Tests of resuming: an interrupted run ends with the same weights as an uninterrupted one."""

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


class TestResuming:
    def test_the_toy_run_has_more_than_one_epoch(self):
        assert 1 < EPOCH_STEPS < TINY.training.steps
        assert EPOCH_STEPS % TINY.training.validate_every

    @pytest.mark.parametrize("at", [1, EPOCH_STEPS, EPOCH_STEPS + 2])
    def test_a_run_stopped_by_sigint_resumes(self, complete_run, tmp_path, monkeypatch, at):
        """The signal arrives in the first step, at the end of an epoch, and within an epoch."""
        run = RunDirectory(tmp_path / "run")
        before = signal.getsignal(signal.SIGINT)
        messages = stop_run(run, at, monkeypatch)
        assert messages == [f"stopped at step {at} and saved a checkpoint; continue with --resume"]
        assert checkpoint_state(run)["step"] == at
        assert signal.getsignal(signal.SIGINT) is before
        resumed = []
        train(copying(), TINY, run, resume=True, callbacks=TrainingCallbacks(on_message=resumed.append))
        assert resumed == [f"resumed at step {at}"]
        assert_same(run, complete_run)

    def test_a_signal_in_the_last_step_does_not_stop_the_run(self, complete_run, tmp_path, monkeypatch):
        def collate_and_signal(rows):
            signal.raise_signal(signal.SIGINT)
            return collate(rows)

        run = RunDirectory(tmp_path / "run")
        monkeypatch.setattr(_trainer, "collate", collate_and_signal)
        train(copying(), changed(steps=1, validate_every=1), run)
        assert [line["step"] for line in run.metrics()] == [0, 1]

    def test_a_run_stopped_by_sigterm_resumes(self, complete_run, tmp_path, monkeypatch):
        run = RunDirectory(tmp_path / "run")
        stop_run(run, 5, monkeypatch, signal.SIGTERM)
        train(copying(), TINY, run, resume=True)
        assert_same(run, complete_run)

    def test_temporary_files_are_removed_on_resume(self, tmp_path, monkeypatch):
        run = RunDirectory(tmp_path / "run")
        stop_run(run, 3, monkeypatch)
        names = ["config.json", "tokenizer.json", "metrics.jsonl", "film.json", "best.safetensors", "last.safetensors"]
        for name in (".new.safetensors", ".tmpaB3dE9", ".config.json.swp", *(f".{name}.k1ll3d__" for name in names)):
            (run.folder / name).write_bytes(b"half")
        (run.folder / ".best.safetensors.c0ffee12-1.abcdefgh.tmp").mkdir()
        (run.folder / ".best.safetensors.c0ffee12-1.abcdefgh.tmp" / "best.safetensors").write_bytes(b"half")
        train(copying(), TINY, run, resume=True)
        assert [path.name for path in run.folder.glob(".*")] == [".config.json.swp"]  # an editor's file is kept

    def test_temporary_files_are_removed_from_a_new_run(self, tmp_path):
        run = RunDirectory(tmp_path / "run")
        run.folder.mkdir()
        (run.folder / ".tokenizer.json.k1ll3d__").write_bytes(b"half")
        train(copying(), changed(steps=1), run)
        assert not list(run.folder.glob(".*"))

    def test_a_run_interrupted_twice_resumes(self, complete_run, tmp_path, monkeypatch):
        run = RunDirectory(tmp_path / "run")
        stop_run(run, 3, monkeypatch)

        def fail(metrics):
            raise RuntimeError("the lights went out")

        with pytest.raises(RuntimeError, match="lights"):
            train(copying(), TINY, run, resume=True, callbacks=TrainingCallbacks(on_validation=fail))
        assert [line["step"] for line in run.metrics()] == [0, 4]  # metrics of step 4 precede its checkpoint
        train(copying(), TINY, run, resume=True)
        assert_same(run, complete_run)

    def test_a_second_signal_stops_the_run_immediately(self, tmp_path, monkeypatch):
        def signal_twice(rows):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(_trainer, "collate", signal_twice)
        run = RunDirectory(tmp_path / "run")
        with pytest.raises(KeyboardInterrupt):
            train(copying(), TINY, run)
        assert checkpoint_state(run)["step"] == 0

    @pytest.mark.slow
    def test_a_run_killed_before_any_rename_resumes(self, tmp_path, monkeypatch):
        """Files change only by renaming: a run killed before any rename can be resumed or started again."""
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
                patch.setattr(Path, "unlink", lambda self, missing_ok=False: None)  # a killed process does not clean up
                with pytest.raises(Killed):
                    train(data, config, run)
            if count < 2:
                with pytest.raises(FileNotFoundError, match="contains no run"):
                    train(data, config, run, resume=True)
            train(data, config, run, resume=count >= 2)
            assert_same(run, complete_run)

    @pytest.mark.slow
    def test_a_run_killed_by_sigkill_resumes(self, tmp_path):
        """The run is a separate process, killed in its second epoch or later."""
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

    def test_resuming_a_finished_run_changes_no_file(self, complete_run):
        before = {path.name: path.read_bytes() for path in complete_run.folder.iterdir()}
        model = train(copying(), TINY, complete_run, resume=True)
        assert {path.name: path.read_bytes() for path in complete_run.folder.iterdir()} == before
        assert all(
            torch.equal(tensor, weights(complete_run.folder)["best"][n]) for n, tensor in model.state_dict().items()
        )

    def test_refuses_an_existing_run_other_data_a_missing_run_and_float16(self, complete_run, tmp_path):
        with pytest.raises(ValueError, match="whole: already contains a run; resume it, or choose another folder"):
            train(copying(), TINY, complete_run)
        with pytest.raises(ValueError, match=r"the data are not those of the run \(copying\); expected the same data"):
            train(replace(copying(), fingerprint=18), TINY, complete_run, resume=True)
        with pytest.raises(FileNotFoundError, match="nothing: contains no run"):
            train(copying(), TINY, RunDirectory(tmp_path / "nothing"), resume=True)
        with pytest.raises(ValueError, match=r"dtype is torch.float16; expected torch.float32 or torch.bfloat16"):
            train(copying(), TINY, RunDirectory(tmp_path / "half"), dtype=torch.float16)
        assert not list(tmp_path.iterdir())
