"""Tests of checkpoints: damage is detected and reported, and a resumed run equals an undamaged one."""

import json
import os
import random
import shutil

import pytest
from safetensors.torch import save_file

from clearhead.translation import (
    RunDirectory,
    TrainingCallbacks,
    train,
)
from clearhead.weights import serialization
from support.damage import flipped
from support.toy_training import (
    TINY,
    assert_same,
    checkpoint_state,
    copying,
    short_validation,
)


@pytest.fixture(scope="module", autouse=True)
def short_validations():
    with short_validation():
        yield


class TestCheckpoints:
    @pytest.fixture
    def run(self, stopped_run, tmp_path):
        """Copy of the stopped run."""
        return RunDirectory(shutil.copytree(stopped_run.folder, tmp_path / "run"))

    @pytest.mark.parametrize("damage", ["truncated", "garbage", "empty", "another file"])
    def test_a_damaged_checkpoint_is_reported_and_renamed(self, run, complete_run, damage):
        path = run.folder / "last.safetensors"
        path.write_bytes(
            {
                "truncated": path.read_bytes()[:-100],
                "garbage": random.Random(0).randbytes(5000),
                "empty": b"",
                "another file": (run.folder / "best.safetensors").read_bytes(),
            }[damage]
        )
        broken, messages = path.read_bytes(), []
        train(copying(), TINY, run, resume=True, callbacks=TrainingCallbacks(on_message=messages.append))
        assert messages[0].startswith(f"{path}: ")
        assert messages[0].endswith(
            "renamed to broken.safetensors; the run continues from previous.safetensors, step 4"
        )
        assert messages[0].count(str(path)) == 1
        assert "\n" not in messages[0]
        assert (run.folder / "broken.safetensors").read_bytes() == broken
        assert_same(run, complete_run)

    def test_two_damaged_checkpoints_raise(self, run):
        for name in ("last", "previous"):
            (run.folder / f"{name}.safetensors").write_bytes(b"half")
        with pytest.raises(ValueError, match=r"^\S*last.safetensors: not a .* \S*previous.safetensors: not a [^\n]*$"):
            train(copying(), TINY, run, resume=True)
        assert (run.folder / "last.safetensors").read_bytes() == b"half"

    @pytest.mark.parametrize("offset", [-1, -5000])
    def test_a_flipped_bit_is_detected(self, run, complete_run, offset):
        """The bit is in the data, where only the checksum detects it."""
        path = run.folder / "last.safetensors"
        path.write_bytes(flipped(path.read_bytes(), offset, bit=6))
        messages = []
        train(copying(), TINY, run, resume=True, callbacks=TrainingCallbacks(on_message=messages.append))
        assert messages[:2] == [
            f"{path}: damaged (its contents do not match its checksum); renamed to broken.safetensors;"
            " the run continues from previous.safetensors, step 4",
            "resumed at step 4",
        ]
        assert_same(run, complete_run)

    def test_a_changed_step_is_detected(self, run, complete_run):
        path = run.folder / "last.safetensors"
        changed = path.read_bytes().replace(rb"\"step\": 6", rb"\"step\": 8")
        assert changed != path.read_bytes()
        path.write_bytes(changed)
        train(copying(), TINY, run, resume=True)
        assert_same(run, complete_run)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda tensors: renamed(tensors, "optimizer.3.exp_avg_sq", "optimizer.3.exp_avg_sr"), "optimizer.3 is "),
            (lambda tensors: renamed(tensors, "optimizer.3.step", "optimizer.999.step"), "optimizer.3 is "),
            (lambda tensors: renamed(tensors, "optimizer.3.step", "optimizer.x.step"), "invalid literal"),
            (lambda tensors: put_nan(tensors, "model.embedding.weight"), "has values that are not finite"),
        ],
    )
    def test_wrong_tensors_with_a_valid_checksum_are_detected(self, run, complete_run, change, message):
        path, messages = run.folder / "last.safetensors", []
        tensors, facts = serialization.read(path, "clearhead.Checkpoint", 1, "cpu")
        serialization.write(path, change({name: tensor.clone() for name, tensor in tensors.items()}), facts)
        train(copying(), TINY, run, resume=True, callbacks=TrainingCallbacks(on_message=messages.append))
        assert message in messages[0]
        assert "continues from previous.safetensors, step 4" in messages[0]
        assert_same(run, complete_run)

    @pytest.mark.parametrize("progress", [{"step": "6"}, {"step": -1}, {"stop": 6}, {"bleu": "x"}, [], None])
    def test_an_invalid_trainer_state_is_refused(self, run, progress):
        path, messages = run.folder / "last.safetensors", []
        tensors, facts = serialization.read(path, "clearhead.Checkpoint", 1, "cpu")
        serialization.write(path, tensors, {**facts, "progress": progress})
        train(copying(), TINY, run, resume=True, callbacks=TrainingCallbacks(on_message=messages.append))
        assert "continues from previous.safetensors, step 4" in messages[0]

    @pytest.mark.parametrize("name", ["last", "previous"])
    def test_a_folder_with_the_name_of_a_checkpoint_is_renamed(self, run, complete_run, name):
        path, messages = run.folder / f"{name}.safetensors", []
        path.unlink()
        path.mkdir()
        (run.folder / "broken.safetensors").write_bytes(b"from an earlier run")
        train(copying(), TINY, run, resume=True, callbacks=TrainingCallbacks(on_message=messages.append))
        assert messages[0].startswith(f"{path}: a folder; ")
        assert (run.folder / "broken-2.safetensors").is_dir()
        assert (run.folder / "broken.safetensors").read_bytes() == b"from an earlier run"
        assert_same(run, complete_run)

    def test_a_checkpoint_without_a_checksum_is_loaded_with_a_warning(self, run, complete_run):
        path = run.folder / "last.safetensors"
        tensors, facts = serialization.read(path, "clearhead.Checkpoint", 1, "cpu")
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, path, {"clearhead": json.dumps(facts)})
        with pytest.warns(UserWarning, match="last.safetensors: carries no checksum"):
            train(copying(), TINY, run, resume=True)
        assert_same(run, complete_run)

    @pytest.mark.parametrize("damage", ["deleted", "damaged"])
    def test_lost_best_weights_are_replaced(self, run, damage):
        path, messages = run.folder / "best.safetensors", []
        if damage == "deleted":
            path.unlink()
        else:
            path.write_bytes(flipped(path.read_bytes(), -1))
        train(copying(), TINY, run, resume=True, callbacks=TrainingCallbacks(on_message=messages.append))
        assert messages[0] == "resumed at step 6"
        assert messages[1].startswith(f"{path}: ")
        assert messages[1].endswith("; replaced by the weights of step 6")
        run.check_best()

    def test_files_deleted_during_training_are_written_again(self, complete_run, tmp_path):
        run, messages = RunDirectory(tmp_path / "run"), []

        def delete(metrics):
            if metrics["step"] == 8:
                for name in ("config.json", "best.safetensors"):
                    (run.folder / name).unlink()

        train(copying(), TINY, run, callbacks=TrainingCallbacks(on_message=messages.append, on_validation=delete))
        assert f"{run.folder / 'config.json'}: the file was missing and has been written again" in messages
        assert run.read() == complete_run.read()
        run.model()

    @pytest.mark.parametrize("line", [b"[]", b'"x"', b"{}", b'{"step": "4"}', b'{"step": NaN}', b"[" * 100_000, b"{"])
    def test_a_line_of_metrics_that_is_not_a_validation_is_refused(self, run, line):
        path = run.folder / "metrics.jsonl"
        path.write_bytes(line + b"\n" + path.read_bytes())
        with pytest.raises(ValueError, match=r"metrics.jsonl, line 1: .* is not a validation; expected an object"):
            train(copying(), TINY, run, resume=True)

    def test_metrics_that_are_not_utf8_are_refused(self, run):
        (run.folder / "metrics.jsonl").write_bytes(b"\xff\n")
        with pytest.raises(ValueError, match=r"metrics.jsonl: not UTF-8 \(invalid start byte\)"):
            train(copying(), TINY, run, resume=True)

    def test_a_second_process_is_refused(self, run, complete_run):
        with run.locked(resume=True):
            with pytest.raises(BlockingIOError, match=f"{run.folder}: in use by process {os.getpid()} on "):
                train(copying(), TINY, run, resume=True)
            with pytest.raises(BlockingIOError, match="in use by"), RunDirectory(run.folder).locked(resume=True):
                pass
        train(copying(), TINY, run, resume=True)
        assert_same(run, complete_run)

    def test_a_run_without_checkpoints_starts_again(self, run, complete_run):
        for name in ("last", "previous", "best"):
            (run.folder / f"{name}.safetensors").unlink()
        (run.folder / "metrics.jsonl").write_text('{"step": 0, "validation": {}}\n{"step": 4, "val')
        train(copying(), TINY, run, resume=True)
        assert_same(run, complete_run)

    @pytest.mark.parametrize("error", [OSError(28, "No space left on device"), None])
    def test_a_full_disk_keeps_the_last_checkpoint(self, complete_run, tmp_path, monkeypatch, error):
        """The error is simulated, or caused by a limit of the file size."""
        resource = pytest.importorskip("resource")
        run, limits = RunDirectory(tmp_path / "run"), resource.getrlimit(resource.RLIMIT_FSIZE)
        save = RunDirectory.save_checkpoint

        def save_on_full_disk(self, model, optimizer, progress):
            if progress.step < 8:
                return save(self, model, optimizer, progress)
            if error is not None:
                patch.setattr(serialization, "save_file", lambda *arguments: (_ for _ in ()).throw(error))
            else:
                resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
            return save(self, model, optimizer, progress)

        with monkeypatch.context() as patch:
            patch.setattr(RunDirectory, "save_checkpoint", save_on_full_disk)
            try:
                with pytest.raises(OSError, match="No space left|last|new.*File too large"):
                    train(copying(), TINY, run)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        files = {"config.json", "tokenizer.json", "metrics.jsonl"}
        files |= {f"{name}.safetensors" for name in ("best", "last", "previous")}
        assert {path.name for path in run.folder.iterdir()} == files
        assert checkpoint_state(run)["step"] == 4
        train(copying(), TINY, run, resume=True)
        assert_same(run, complete_run)


def renamed(tensors, old, new):
    return {new if name == old else name: tensor for name, tensor in tensors.items()}


def put_nan(tensors, name):
    tensors[name][0, 0] = float("nan")
    return tensors
