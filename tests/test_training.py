"""Training: a run that is interrupted, however rudely, ends as one that was not; and what is learned is real."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.optim.optimizer import register_optimizer_step_pre_hook
from typer.testing import CliRunner

from clearhead.cli import app
from clearhead.translation import _evaluation
from clearhead.translation import training as training
from clearhead.translation._evaluation import Metrics, bleu_score, cross_entropy, validate, write_all
from clearhead.translation.config import Config
from clearhead.translation.data import dataset as making
from clearhead.translation.data._batching import collate, in_batches
from clearhead.translation.data.dataset import from_files, from_grammar
from clearhead.translation.data.grammar.generate import TARGET_RELATIONS
from clearhead.translation.heads.probes import probe_results
from clearhead.translation.model import Transformer
from clearhead.translation.run_directory import RunDirectory
from clearhead.translation.tokenizer import PAD
from clearhead.translation.training import TrainingCallbacks, schedule, train
from clearhead.weights import serialization
from damage import flipped
from toy_training import (
    TINY,
    TOML,
    WORDS,
    assert_same,
    changed,
    copying,
    progress_of,
    sentences,
    weights,
    written_columns,
)

EPOCH = len(in_batches(copying().epoch(0), TINY.training.batch_tokens, (0, 0)))  # steps


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody interrupted."""
    run = RunDirectory(tmp_path_factory.mktemp("runs") / "whole")
    train(copying(), TINY, run)
    return run


def interrupted(run, at, monkeypatch, number=signal.SIGINT):
    """A run that was asked to stop in the midst of a step."""
    made = []

    def collating(rows):
        made.append(rows)
        if len(made) == at:
            signal.raise_signal(number)
        return collate(rows)

    said = []
    with monkeypatch.context() as patch:
        patch.setattr(training, "collate", collating)
        with pytest.raises(KeyboardInterrupt):
            train(copying(), TINY, run, report=TrainingCallbacks(say=said.append))
    return said


class TestResuming:
    def test_the_toy_has_more_than_one_epoch(self):
        assert 1 < EPOCH < TINY.training.steps
        assert EPOCH % TINY.training.validate_every

    @pytest.mark.parametrize("at", [1, EPOCH, EPOCH + 2])
    def test_stopped_politely(self, whole, tmp_path, monkeypatch, at):
        """In the first step, at the end of an epoch, and within one."""
        run = RunDirectory(tmp_path / "run")
        before = signal.getsignal(signal.SIGINT)
        said = interrupted(run, at, monkeypatch)
        assert said == [f"stopped at step {at}, which is saved; --resume goes on from there"]
        assert progress_of(run)["step"] == at
        assert signal.getsignal(signal.SIGINT) is before
        resumed = []
        train(copying(), TINY, run, resume=True, report=TrainingCallbacks(say=resumed.append))
        assert resumed == [f"resumed at step {at}"]
        assert_same(run, whole)

    def test_asked_to_stop_in_the_last_step_it_comes_to_its_end(self, whole, tmp_path, monkeypatch):
        def collating(rows):
            signal.raise_signal(signal.SIGINT)
            return collate(rows)

        run = RunDirectory(tmp_path / "run")
        monkeypatch.setattr(training, "collate", collating)
        train(copying(), changed(steps=1, validate_every=1), run)
        assert [line["step"] for line in run.metrics()] == [0, 1]

    def test_stopped_by_a_kill_that_can_be_heard(self, whole, tmp_path, monkeypatch):
        run = RunDirectory(tmp_path / "run")
        interrupted(run, 5, monkeypatch, signal.SIGTERM)
        train(copying(), TINY, run, resume=True)
        assert_same(run, whole)

    def test_what_a_killed_process_left_half_written_is_removed(self, tmp_path, monkeypatch):
        run = RunDirectory(tmp_path / "run")
        interrupted(run, 3, monkeypatch)
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

    def test_interrupted_twice(self, whole, tmp_path, monkeypatch):
        run = RunDirectory(tmp_path / "run")
        interrupted(run, 3, monkeypatch)

        def fail(metrics):
            raise RuntimeError("the lights went out")

        with pytest.raises(RuntimeError, match="lights"):
            train(copying(), TINY, run, resume=True, report=TrainingCallbacks(measured=fail))
        assert [line["step"] for line in run.metrics()] == [0, 4]  # measured, but the checkpoint is of step 3
        train(copying(), TINY, run, resume=True)
        assert_same(run, whole)

    def test_a_second_signal_ends_it_at_once(self, tmp_path, monkeypatch):
        def collating(rows):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(training, "collate", collating)
        run = RunDirectory(tmp_path / "run")
        with pytest.raises(KeyboardInterrupt):
            train(copying(), TINY, run)
        assert progress_of(run)["step"] == 0

    def test_killed_before_any_rename(self, tmp_path, monkeypatch):
        """Files change by renaming alone: a run that ends just before any of these can be resumed, or begun anew."""
        data, config = copying(10, 2), changed(steps=4, validate_every=2)
        whole = RunDirectory(tmp_path / "whole")
        rename, renamed = Path.replace, []
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", lambda self, to: (renamed.append(Path(to).name), rename(self, to))[1])
            train(data, config, whole)
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
            assert_same(run, whole)

    def test_kill_9(self, tmp_path):
        """A real process, in its second epoch or later, that nobody asked."""
        columns = written_columns(tmp_path / "copies.tsv")
        (tmp_path / "tiny.toml").write_text(TOML.replace("steps = 12", "steps = 60"))
        config = Config.read(tmp_path / "tiny.toml")
        whole, run = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "run")
        data = from_files([columns], [], config)
        assert len(in_batches(data.epoch(0), config.training.batch_tokens, (0, 0))) < 20
        train(data, config, whole)
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
        assert_same(run, whole)

    def test_a_finished_run_is_left_as_it_is(self, whole):
        before = {path.name: path.read_bytes() for path in whole.folder.iterdir()}
        model = train(copying(), TINY, whole, resume=True)
        assert {path.name: path.read_bytes() for path in whole.folder.iterdir()} == before
        assert all(torch.equal(tensor, weights(whole.folder)["best"][n]) for n, tensor in model.state_dict().items())

    def test_what_is_refused(self, whole, tmp_path):
        with pytest.raises(ValueError, match="whole: there is a run in it already; resume it, or choose another"):
            train(copying(), TINY, whole)
        with pytest.raises(ValueError, match=r"the run began with other data \(copying\); give it the same"):
            train(replace(copying(), fingerprint=18), TINY, whole, resume=True)
        with pytest.raises(FileNotFoundError, match="nothing: no run in it"):
            train(copying(), TINY, RunDirectory(tmp_path / "nothing"), resume=True)
        with pytest.raises(ValueError, match=r"dtype is torch.float16; expected torch.float32 or torch.bfloat16"):
            train(copying(), TINY, RunDirectory(tmp_path / "half"), dtype=torch.float16)
        assert not list(tmp_path.iterdir())


class TestCheckpoints:
    @pytest.fixture
    def run(self, tmp_path, monkeypatch):
        """Stopped at step 6; the checkpoint before is of step 4."""
        run = RunDirectory(tmp_path / "run")
        interrupted(run, 6, monkeypatch)
        assert progress_of(run, "previous")["step"] == 4
        return run

    @pytest.mark.parametrize("harm", ["truncated", "garbage", "empty", "another model's", "another file's"])
    def test_a_broken_one_is_said_and_kept(self, run, whole, tmp_path, harm):
        path = run.folder / "last.safetensors"
        if harm == "another model's":
            train(copying(), replace(TINY, model=replace(TINY.model, d_model=8)), RunDirectory(tmp_path / "other"))
            path.write_bytes((tmp_path / "other" / "last.safetensors").read_bytes())
        else:
            path.write_bytes(
                {
                    "truncated": path.read_bytes()[:-100],
                    "garbage": random.Random(0).randbytes(5000),
                    "empty": b"",
                    "another file's": (run.folder / "best.safetensors").read_bytes(),
                }[harm]
            )
        broken, said = path.read_bytes(), []
        train(copying(), TINY, run, resume=True, report=TrainingCallbacks(say=said.append))
        assert said[0].startswith(f"{path}: ")
        assert said[0].endswith("kept as broken.safetensors, and the run goes on from previous.safetensors, step 4")
        assert said[0].count(str(path)) == 1
        assert "\n" not in said[0]
        assert (run.folder / "broken.safetensors").read_bytes() == broken
        assert_same(run, whole)

    def test_both_broken(self, run):
        for name in ("last", "previous"):
            (run.folder / f"{name}.safetensors").write_bytes(b"half")
        with pytest.raises(ValueError, match=r"^\S*last.safetensors: not a .* \S*previous.safetensors: not a [^\n]*$"):
            train(copying(), TINY, run, resume=True)
        assert (run.folder / "last.safetensors").read_bytes() == b"half"

    @pytest.mark.parametrize("place", [-1, 5000])
    def test_a_flipped_bit_is_found(self, run, whole, place):
        """In the data, where nothing else would notice it."""
        path = run.folder / "last.safetensors"
        path.write_bytes(flipped(path.read_bytes(), place, bit=6))
        said = []
        train(copying(), TINY, run, resume=True, report=TrainingCallbacks(say=said.append))
        assert said[:2] == [
            f"{path}: damaged (its contents do not match its checksum); it is kept as broken.safetensors,"
            " and the run goes on from previous.safetensors, step 4",
            "resumed at step 4",
        ]
        assert_same(run, whole)

    def test_a_changed_step_is_not_believed(self, run, whole):
        path = run.folder / "last.safetensors"
        changed = path.read_bytes().replace(rb"\"step\": 6", rb"\"step\": 8")
        assert changed != path.read_bytes()
        path.write_bytes(changed)
        train(copying(), TINY, run, resume=True)
        assert_same(run, whole)

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            (lambda tensors: renamed(tensors, "optimizer.3.exp_avg_sq", "optimizer.3.exp_avg_sr"), "optimizer.3 is "),
            (lambda tensors: renamed(tensors, "optimizer.3.step", "optimizer.999.step"), "optimizer.3 is "),
            (lambda tensors: renamed(tensors, "optimizer.3.step", "optimizer.x.step"), "invalid literal"),
            (lambda tensors: put_nan(tensors, "model.embedding.weight"), "has values that are not finite"),
        ],
    )
    def test_a_whole_file_with_other_contents(self, run, whole, change, says):
        path, said = run.folder / "last.safetensors", []
        tensors, facts = serialization.read(path, "clearhead.Checkpoint", 1, "cpu")
        serialization.write(path, change({name: tensor.clone() for name, tensor in tensors.items()}), facts)
        train(copying(), TINY, run, resume=True, report=TrainingCallbacks(say=said.append))
        assert says in said[0]
        assert "goes on from previous.safetensors, step 4" in said[0]
        assert_same(run, whole)

    @pytest.mark.parametrize("progress", [{"step": "6"}, {"step": -1}, {"stop": 6}, {"bleu": "x"}, [], None])
    def test_another_progress_is_refused(self, run, progress):
        path, said = run.folder / "last.safetensors", []
        tensors, facts = serialization.read(path, "clearhead.Checkpoint", 1, "cpu")
        serialization.write(path, tensors, {**facts, "progress": progress})
        train(copying(), TINY, run, resume=True, report=TrainingCallbacks(say=said.append))
        assert "goes on from previous.safetensors, step 4" in said[0]

    @pytest.mark.parametrize("name", ["last", "previous"])
    def test_a_folder_in_its_place(self, run, whole, name):
        path, said = run.folder / f"{name}.safetensors", []
        path.unlink()
        path.mkdir()
        (run.folder / "broken.safetensors").write_bytes(b"of an earlier time")
        train(copying(), TINY, run, resume=True, report=TrainingCallbacks(say=said.append))
        assert said[0].startswith(f"{path}: a folder; ")
        assert (run.folder / "broken-2.safetensors").is_dir()
        assert (run.folder / "broken.safetensors").read_bytes() == b"of an earlier time"
        assert_same(run, whole)

    def test_one_of_an_earlier_version(self, run, whole):
        path = run.folder / "last.safetensors"
        tensors, facts = serialization.read(path, "clearhead.Checkpoint", 1, "cpu")
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, path, {"clearhead": json.dumps(facts)})
        with pytest.warns(UserWarning, match="last.safetensors: carries no checksum"):
            train(copying(), TINY, run, resume=True)
        assert_same(run, whole)

    @pytest.mark.parametrize("harm", ["deleted", "damaged"])
    def test_best_is_lost(self, run, harm):
        path, said = run.folder / "best.safetensors", []
        if harm == "deleted":
            path.unlink()
        else:
            path.write_bytes(flipped(path.read_bytes(), -1))
        train(copying(), TINY, run, resume=True, report=TrainingCallbacks(say=said.append))
        assert said[0] == "resumed at step 6"
        assert said[1].startswith(f"{path}: ")
        assert said[1].endswith("; the weights of step 6 take its place")
        run.check_best()

    def test_config_and_best_deleted_midway(self, whole, tmp_path):
        run, said = RunDirectory(tmp_path / "run"), []

        def delete(metrics):
            if metrics["step"] == 8:
                for name in ("config.json", "best.safetensors"):
                    (run.folder / name).unlink()

        train(copying(), TINY, run, report=TrainingCallbacks(say=said.append, measured=delete))
        assert f"{run.folder / 'config.json'}: there is no such file; it is written again" in said
        assert run.read() == whole.read()
        run.model()

    @pytest.mark.parametrize("line", [b"[]", b'"x"', b"{}", b'{"step": "4"}', b'{"step": NaN}', b"[" * 100_000, b"{"])
    def test_metrics_of_another_kind(self, run, line):
        path = run.folder / "metrics.jsonl"
        path.write_bytes(line + b"\n" + path.read_bytes())
        with pytest.raises(ValueError, match=r"metrics.jsonl, line 1: .* is not a validation; expected an object"):
            train(copying(), TINY, run, resume=True)

    def test_metrics_that_are_not_text(self, run):
        (run.folder / "metrics.jsonl").write_bytes(b"\xff\n")
        with pytest.raises(ValueError, match=r"metrics.jsonl: not UTF-8 \(invalid start byte\)"):
            train(copying(), TINY, run, resume=True)

    def test_a_second_process_is_refused(self, run, whole):
        with run.locked(resume=True):
            with pytest.raises(BlockingIOError, match=f"{run.folder}: in use by process {os.getpid()} on "):
                train(copying(), TINY, run, resume=True)
            with pytest.raises(BlockingIOError, match="in use by"), RunDirectory(run.folder).locked(resume=True):
                pass
        train(copying(), TINY, run, resume=True)
        assert_same(run, whole)

    def test_none_yet(self, run, whole):
        for name in ("last", "previous", "best"):
            (run.folder / f"{name}.safetensors").unlink()
        (run.folder / "metrics.jsonl").write_text('{"step": 0, "validation": {}}\n{"step": 4, "val')
        train(copying(), TINY, run, resume=True)
        assert_same(run, whole)

    @pytest.mark.parametrize("error", [OSError(28, "No space left on device"), None])
    def test_a_full_disk(self, whole, tmp_path, monkeypatch, error):
        """Said by the system, or by the limit that stands in for it here: files of at most so many bytes."""
        resource = pytest.importorskip("resource")
        run, limits = RunDirectory(tmp_path / "run"), resource.getrlimit(resource.RLIMIT_FSIZE)
        save = RunDirectory.save

        def save_in_no_space(self, model, optimizer, progress):
            if progress.step < 8:
                return save(self, model, optimizer, progress)
            if error is not None:
                patch.setattr(serialization, "save_file", lambda *arguments: (_ for _ in ()).throw(error))
            else:
                resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
            return save(self, model, optimizer, progress)

        with monkeypatch.context() as patch:
            patch.setattr(RunDirectory, "save", save_in_no_space)
            try:
                with pytest.raises(OSError, match="No space left|last|new.*File too large"):
                    train(copying(), TINY, run)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        files = {"config.json", "tokenizer.json", "metrics.jsonl"}
        files |= {f"{name}.safetensors" for name in ("best", "last", "previous")}
        assert {path.name for path in run.folder.iterdir()} == files
        assert progress_of(run)["step"] == 4
        train(copying(), TINY, run, resume=True)
        assert_same(run, whole)


def renamed(tensors, old, new):
    return {new if name == old else name: tensor for name, tensor in tensors.items()}


def put_nan(tensors, name):
    tensors[name][0, 0] = float("nan")
    return tensors


class TestSteps:
    def test_the_rate_rises_and_falls(self):
        rates = [schedule(step, TINY.training) for step in range(1, 13)]
        assert rates[:4] == [1 / 3, 2 / 3, 1.0, 1.0]
        assert rates[3:] == sorted(set(rates[3:]), reverse=True)
        assert rates[-1] == pytest.approx(1 / 9)

    def test_the_rate_and_the_gradients_of_every_step(self, tmp_path):
        """Seen as the optimizer sees them."""
        rates, norms = [], {}

        def look(optimizer, arguments, options):
            group = optimizer.param_groups[0]
            rates.append(group["lr"])
            norms[clip].append(float(torch.cat([p.grad.flatten() for p in group["params"]]).norm()))

        hook = register_optimizer_step_pre_hook(look)
        try:
            for clip in (0.25, 1e6):
                norms[clip] = []
                train(copying(), changed(clip=clip, steps=5), RunDirectory(tmp_path / str(clip)))
        finally:
            hook.remove()
        assert rates[:5] == rates[5:]
        assert rates[:5] == [0.01 * schedule(step, changed(steps=5).training) for step in range(1, 6)]
        assert norms[0.25] == pytest.approx([0.25] * 5, rel=1e-3)
        assert min(norms[1e6]) > 0.3

    def test_label_smoothing(self):
        logits = torch.randn(2, 3, 7)
        expected = torch.tensor([[5, 6, 2], [4, PAD, PAD]])
        logs = logits.log_softmax(dim=-1)
        real = [(0, 0, 5), (0, 1, 6), (0, 2, 2), (1, 0, 4)]
        by_hand = sum(-0.7 * logs[row, place, token] - 0.3 * logs[row, place].mean() for row, place, token in real)
        assert float(cross_entropy(logits, expected, 0.3)) == pytest.approx(float(by_hand), rel=1e-5)

    def test_the_loss_of_a_step(self, tmp_path):
        """The mean over the tokens of the batch, smoothed as is said."""
        config = replace(changed(steps=1, label_smoothing=0.3), model=replace(TINY.model, dropout=0.0))
        data, run = copying(), RunDirectory(tmp_path / "run")
        train(data, config, run)
        torch.manual_seed(0)
        model = Transformer(config.model, len(data.vocabulary))
        first = in_batches(data.epoch(0), 128, (0, 0))[0]
        batch = collate([data.epoch(0)[number] for number in first])
        with torch.no_grad():
            loss = cross_entropy(model(batch.source, batch.target, batch.lengths), batch.expected, 0.3)
        assert run.metrics()[-1]["loss"] == pytest.approx(float(loss) / int((batch.expected != PAD).sum()), abs=2e-5)

    def test_other_seeds_other_weights(self, whole, tmp_path):
        run = RunDirectory(tmp_path / "run")
        train(copying(), changed(seed=1), run)
        with pytest.raises(AssertionError):
            assert_same(run, whole)

    def test_bfloat16(self, tmp_path):
        run = RunDirectory(tmp_path / "run")
        train(copying(), TINY, run, dtype=torch.bfloat16)
        assert {tensor.dtype for tensor in weights(run.folder)["best"].values()} == {torch.float32}
        first, last = run.metrics()[0], run.metrics()[-1]
        assert last["validation"]["loss"] < first["validation"]["loss"]

    def test_a_toy_is_learned(self, tmp_path):
        """Seven sentences again and again; chance is ln 15 = 2.7 nats."""
        data = copying(7, 7)
        data = replace(data, epoch=lambda number: data.valid)
        config = changed(steps=80, validate_every=80, warmup=8, label_smoothing=0.0)
        run = RunDirectory(tmp_path / "run")
        model = train(data, replace(config, model=replace(TINY.model, d_model=32, dropout=0.0)), run)
        first, last = (line["validation"] for line in run.metrics())
        assert first["loss"] > 2
        assert last["loss"] < 0.3
        assert last["exact"] == 1
        assert not model.training

    def test_a_model_of_ones_own(self, tmp_path):
        config = replace(TINY, model=replace(TINY.model, d_model=8))
        own = Transformer(config.model, len(copying().vocabulary))
        assert train(copying(), config, RunDirectory(tmp_path / "run"), model=own) is own


class TestBest:
    @pytest.fixture
    def scripted(self, monkeypatch):
        """Validations that find what a script says; the weights at each of them."""

        def prepared(*found):
            script, met = iter(found), []

            def validate(model, *arguments):
                met.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
                bleu, loss = next(script)
                return Metrics(loss, 0.0, bleu)

            monkeypatch.setattr(training, "validate", validate)
            return met

        return prepared

    def test_best_is_by_bleu_and_then_by_loss(self, scripted, tmp_path):
        run = RunDirectory(tmp_path / "run")
        met = scripted((1, 9), (30, 5), (30, 4), (30, 4.5), (20, 1))
        model = train(copying(), changed(steps=4, validate_every=1), run)
        best = weights(run.folder)["best"]
        assert all(torch.equal(best[name], tensor) for name, tensor in met[2].items())
        assert all(torch.equal(tensor, best[name]) for name, tensor in model.state_dict().items())
        assert not torch.equal(best["embedding.weight"], met[3]["embedding.weight"])

    def test_patience(self, scripted, tmp_path):
        said, run = [], RunDirectory(tmp_path / "run")
        config = changed(steps=8, validate_every=1, patience=2)
        scripted((1, 9), (3, 9), (2, 9), (4, 9), (4, 9), (3, 9))
        train(copying(), config, run, report=TrainingCallbacks(say=said.append))
        assert said == ["ended at step 5: no better BLEU in 2 validations"]
        assert [line["step"] for line in run.metrics()] == [0, 1, 2, 3, 4, 5]
        before = weights(run.folder)
        train(copying(), config, run, resume=True)  # no validation is left in the script
        assert torch.equal(
            weights(run.folder)["last"]["model.embedding.weight"], before["last"]["model.embedding.weight"]
        )

    def test_no_patience_is_no_end(self, scripted, tmp_path):
        run = RunDirectory(tmp_path / "run")
        scripted((9, 9), *[(1, 9)] * 6)
        train(copying(), changed(steps=6, validate_every=1, patience=0), run)
        assert run.metrics()[-1]["step"] == 6


class TestValidation:
    def test_of_a_perfect_and_of_a_useless_translation(self):
        assert bleu_score(["ka ki ku ke"], ["ka ki ku ke"], "none") == pytest.approx(100)
        assert bleu_score(["so so so so"], ["ka ki ku ke"], "none") < 1
        assert bleu_score(["私は本を読んだ。"], ["私は本を読んだ。"], "ja-mecab") == pytest.approx(100)

    def test_in_any_batches(self, monkeypatch):
        """Loss per token, translations in order, and the model's mode as it was."""
        data = copying(30, 13)
        model = Transformer(TINY.model, len(data.vocabulary))
        for layer in model.decoder:  # what it writes depends on what it reads
            torch.nn.init.normal_(layer.cross.output.weight)
            torch.nn.init.normal_(layer.cross.value.weight)
        sources, references = [pair.source for pair in data.valid], [pair.target for pair in data.references]
        found = []
        for tokens in (8192, 40):
            monkeypatch.setattr(_evaluation, "BATCH_TOKENS", tokens)
            assert (len(in_batches(data.valid, tokens)) > 1) is (tokens < 1000)
            for mode in (True, False):
                model.train(mode)
                found.append(validate(model, data.vocabulary, data.valid, references, "none"))
                assert model.training is mode
            written = [own.tokens[:9] for own in write_all(model.eval(), sources, beams=1)]  # a batch has one limit
            assert written == [write_all(model, [source], beams=1)[0].tokens[:9] for source in sources]
            assert len(set(written)) > 1
        for quality in found[1:]:
            assert quality.loss == pytest.approx(found[0].loss, rel=1e-5)

    def test_exact(self, monkeypatch):
        data = copying(30, 13)
        model = Transformer(TINY.model, len(data.vocabulary)).eval()
        texts = [
            data.vocabulary.decode(own.tokens) for own in write_all(model, [p.source for p in data.valid], beams=1)
        ]
        texts[:3] = ["ka"] * 3
        assert validate(model, data.vocabulary, data.valid, texts, "none").exact == 10 / 13


class TestData:
    def test_the_grammar(self, monkeypatch):
        monkeypatch.setattr(making, "EPOCH", 300)
        monkeypatch.setattr(making, "PROBE", 50)
        data, again = from_grammar(TINY), from_grammar(TINY)
        assert data.fingerprint == again.fingerprint
        assert data.epoch(3) == again.epoch(3)
        assert data.epoch(3) != data.epoch(4)
        assert data.epoch(0) != from_grammar(changed(seed=1)).epoch(0)
        assert from_grammar(replace(TINY, text=replace(TINY.text, validation=8))).fingerprint != data.fingerprint
        learned = {data.vocabulary.decode(pair.source) for number in range(4) for pair in data.epoch(number)}
        assert len(data.epoch(0)) == 300
        assert len({pair.source for pair in data.references}) == 7
        assert len({example.source for example in data.probe}) == 50
        held_out = {pair.source for pair in data.references} | {" ".join(example.source) for example in data.probe}
        assert len(held_out) == 57
        assert not learned & held_out

    def test_a_validation_set_out_of_the_data(self, tmp_path):
        data = from_files([written_columns(tmp_path / "copies.tsv")], [], TINY)
        texts = set(sentences(47))
        learned = {data.vocabulary.decode(pair.source) for pair in data.epoch(0)}
        kept = {pair.source for pair in data.references}
        assert len(kept) == 7
        assert not kept & learned
        assert kept | learned == texts
        assert [data.vocabulary.decode(pair.target) for pair in data.valid] == [pair.target for pair in data.references]
        assert data.notes == ()

    def test_a_validation_set_of_its_own(self, tmp_path):
        columns, held_out = written_columns(tmp_path / "copies.tsv"), written_columns(tmp_path / "valid.tsv", 5)
        data = from_files([columns], [held_out], TINY)
        assert [pair.source for pair in data.references] == sentences(5)
        assert {data.vocabulary.decode(pair.source) for pair in data.epoch(0)} == set(sentences(47)[5:])
        assert data.notes == (f"5 pairs that are held out for validation left out (the first: {sentences(1)[0]!r})",)

    def test_what_is_too_long_is_noted(self, tmp_path):
        columns = tmp_path / "long.tsv"
        written_columns(columns)
        long = " ".join(WORDS * 4)
        columns.write_text(f"{long}\tKA\nka ki\t{long.upper()}\n{columns.read_text()}")
        config = replace(TINY, text=replace(TINY.text, max_tokens=40))
        data = from_files([str(columns)], [written_columns(tmp_path / "valid.tsv", 5)], config)
        assert (
            data.notes[-1]
            == f"2 training pairs of more than 40 tokens left out (text.max_tokens), the first: {long[:60]!r}"
        )
        assert len(data.epoch(0)) == 42
        with pytest.raises(ValueError, match="no training pair has at most 2 tokens"):
            from_files([str(columns)], [], replace(TINY, text=replace(TINY.text, max_tokens=2)))

    def test_too_few_to_validate_with(self, tmp_path):
        with pytest.raises(ValueError, match=r"data has 7 pairs and 7 are to be kept to validate with"):
            from_files([written_columns(tmp_path / "few.tsv", 7)], [], TINY)

    def test_other_data_have_another_fingerprint(self, tmp_path):
        first, same, more = (
            from_files([written_columns(tmp_path / f"{number}.tsv", count)], [], TINY)
            for number, count in enumerate((40, 40, 41))
        )
        assert first.fingerprint == same.fingerprint != more.fingerprint


@pytest.mark.slow
def test_heads_specialise_in_a_full_run(tmp_path):
    """`clearhead train` as it comes: it learns the grammar, and heads come to find what no fixed offset finds."""
    run = RunDirectory(tmp_path / "run")
    result = CliRunner().invoke(app, ["train", "--output", str(run.folder)], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    last = run.metrics()[-1]
    assert last["step"] == Config().training.steps
    assert last["validation"]["exact"] >= 0.95
    found = [
        finding
        for finding in probe_results(last["heads"], from_grammar(Config()).probe)
        if finding.relation in TARGET_RELATIONS and finding.accuracy >= 0.75 and finding.baseline <= 0.45
    ]
    assert len(found) >= 4, found
    assert len({finding.address for finding in found}) >= 2, found
    assert (run.folder / "heads.svg").exists()


class TestDiverging:
    def test_a_loss_that_is_no_number_ends_the_run_and_says_so(self, tmp_path):
        run = RunDirectory(tmp_path / "run")
        with pytest.raises(
            ValueError, match=r"step \d+: the loss is nan; a training.learning_rate below 1e\+30 may help"
        ):
            train(copying(), changed(learning_rate=1e30, warmup=1), run)
        assert all("NaN" not in line for line in (run.folder / "metrics.jsonl").read_text().splitlines())

    def test_another_dtype_does_not_go_on_with_a_run(self, whole):
        with pytest.raises(ValueError, match="the run began with dtype float32, not bfloat16; give it the same"):
            train(copying(), TINY, whole, dtype=torch.bfloat16, resume=True)
