"""Tests of the identity of a run: edited settings, changed files and files of another run are refused by name."""

import json
import shutil
import warnings
from pathlib import Path

import pytest

from clearhead.translation import RunDirectory, TrainingCallbacks, Translator, Vocabulary, train
from clearhead.translation.run_directory import ChangedRunError
from clearhead.weights import serialization
from support.damage import flipped
from support.toy_training import TINY, assert_same, changed, copying, short_validation

FORMATS = {"best": "clearhead.Transformer", "last": "clearhead.Checkpoint", "previous": "clearhead.Checkpoint"}


@pytest.fixture(scope="module", autouse=True)
def short_validations():
    with short_validation():
        yield


@pytest.fixture(scope="module")
def other_run(tmp_path_factory):
    """Run of the same sizes with another seed."""
    run = RunDirectory(tmp_path_factory.mktemp("runs") / "other")
    train(copying(), changed(seed=1), run)
    return run


@pytest.fixture
def run(stopped_run, tmp_path):
    """Copy of the stopped run."""
    return RunDirectory(shutil.copytree(stopped_run.folder, tmp_path / "run"))


def edit(run: RunDirectory, old: str, new: str) -> None:
    path = run.folder / "config.json"
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def without_identity(run: RunDirectory) -> RunDirectory:
    """Return the run with the files that clearhead wrote before runs had an identity."""
    facts = json.loads((run.folder / "config.json").read_text())
    kept = {name: fact for name, fact in facts.items() if name not in ("run", "tokenizer", "sha256")}
    (run.folder / "config.json").write_text(json.dumps(kept, indent=1))
    for name, kind in FORMATS.items():
        tensors, facts = serialization.read(run.folder / f"{name}.safetensors", kind, 1, "cpu")
        kept = {name: fact for name, fact in facts.items() if name not in ("run", "config")}
        serialization.write(run.folder / f"{name}.safetensors", tensors, kept)
    return RunDirectory(run.folder)


def resume(run: RunDirectory) -> list[str]:
    """Resume a run with the configuration in its folder; return the messages."""
    messages = []
    train(copying(), run.read()[0], run, resume=True, callbacks=TrainingCallbacks(on_message=messages.append))
    return messages


class TestRefusals:
    def test_an_edited_setting_is_named(self, run):
        edit(run, '"learning_rate": 0.01', '"learning_rate": 0.02')
        message = (
            r"config.json: changed since it was written \(training.learning_rate is 0.02; expected 0.01\); restore it"
        )
        for use in (lambda: resume(run), run.model, run.vocabulary, lambda: Translator.load(run.folder)):
            with pytest.raises(ChangedRunError, match=message) as error:
                use()
            assert "\n" not in str(error.value)

    def test_an_edited_entry_that_is_not_a_setting_is_refused(self, run):
        edit(run, '"data": "copying"', '"data": "capping"')
        with pytest.raises(ChangedRunError, match=r"changed since it was written \(its contents do not match"):
            run.read()

    @pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
    def test_every_flipped_bit_is_refused(self, run, name):
        path = run.folder / name
        content = path.read_bytes()
        for offset in range(0, len(content), 7):
            path.write_bytes(flipped(content, offset, offset % 8))
            with pytest.raises(ValueError, match=name):
                run.vocabulary()
        path.write_bytes(content)
        run.vocabulary()

    @pytest.mark.parametrize("name", ["last", "best"])
    def test_weights_of_another_run_are_refused_and_kept(self, run, other_run, name):
        path = run.folder / f"{name}.safetensors"
        shutil.copyfile(other_run.folder / path.name, path)
        with pytest.raises(ChangedRunError, match=f"{name}.safetensors: belongs to another run; restore it, or accept"):
            resume(run)
        assert path.read_bytes() == (other_run.folder / path.name).read_bytes()
        assert not (run.folder / "broken.safetensors").exists()
        if name == "best":
            with pytest.raises(ChangedRunError, match="best.safetensors: belongs to another run"):
                Translator.load(run.folder)

    def test_a_previous_checkpoint_of_another_run_does_not_replace_a_damaged_one(self, run, other_run):
        (run.folder / "last.safetensors").write_bytes(b"half")
        shutil.copyfile(other_run.folder / "last.safetensors", run.folder / "previous.safetensors")
        with pytest.raises(ChangedRunError, match="previous.safetensors: belongs to another run"):
            resume(run)

    def test_the_tokenizer_of_another_run_is_refused(self, run):
        Vocabulary.from_words(["ka", "te"]).save(run.folder / "tokenizer.json")
        for use in (lambda: resume(run), run.model):
            with pytest.raises(ChangedRunError, match="tokenizer.json: changed since it was written"):
                use()

    def test_another_configuration_than_that_of_the_run_is_refused(self, run):
        with pytest.raises(ValueError, match=r"run: training.warmup is 5; expected 3, as in config.json"):
            train(copying(), changed(warmup=5), run, resume=True)

    def test_a_tokenizer_of_an_attempt_that_was_killed_is_replaced(self, complete_run, tmp_path):
        run = RunDirectory(tmp_path / "run")
        run.folder.mkdir()
        Vocabulary.from_words(["ka", "te"]).save(run.folder / "tokenizer.json")
        train(copying(), TINY, run)
        assert (run.folder / "tokenizer.json").read_bytes() == (complete_run.folder / "tokenizer.json").read_bytes()


class TestForce:
    def test_accepted_changes_become_part_of_the_run(self, run, other_run):
        edit(run, '"learning_rate": 0.01', '"learning_rate": 0.02')
        for name in ("last", "best"):
            shutil.copyfile(other_run.folder / f"{name}.safetensors", run.folder / f"{name}.safetensors")
        before = RunDirectory(other_run.folder)
        before.read()
        forced = RunDirectory(run.folder, force=True)
        messages = resume(forced)
        assert messages[1:4] == [
            f"{run.folder / 'config.json'}: changed since it was written (its contents do not match its checksum);"
            " accepted",
            f"{run.folder / 'last.safetensors'}: belongs to another run; accepted",
            f"{run.folder / 'best.safetensors'}: belongs to another run; accepted",
        ]
        assert messages[0] == "resumed at step 12"
        assert resume(RunDirectory(run.folder)) == ["resumed at step 12"]
        assert Translator.load(run.folder).config == changed(learning_rate=0.02)
        run.read()
        assert run.identity not in (None, before.identity)

    def test_a_run_without_changes_keeps_its_files(self, complete_run):
        before = {path.name: path.read_bytes() for path in complete_run.folder.iterdir()}
        resume(RunDirectory(complete_run.folder, force=True))
        assert {path.name: path.read_bytes() for path in complete_run.folder.iterdir()} == before


class TestRunsWithoutIdentity:
    def test_it_is_resumed_with_one_warning_and_gets_an_identity(self, run, complete_run):
        old = without_identity(run)
        with pytest.warns(UserWarning, match="run: carries no identity") as caught:
            messages = resume(old)
        assert len(caught) == 1
        assert messages == ["resumed at step 6"]
        assert_same(run, complete_run)
        Translator.load(run.folder)  # without a warning
        edit(run, '"warmup": 3', '"warmup": 4')
        with pytest.raises(ChangedRunError, match=r"training.warmup is 4; expected 3"):
            resume(run)

    def test_it_is_loaded_with_one_warning(self, run):
        without_identity(run)
        with pytest.warns(UserWarning, match="run: carries no identity") as caught:
            Translator.load(run.folder)
        assert len(caught) == 1

    def test_it_is_resumed_without_a_checkpoint(self, run, complete_run):
        old = without_identity(run)
        for name in FORMATS:
            (run.folder / f"{name}.safetensors").unlink()
        (run.folder / "metrics.jsonl").unlink()
        with pytest.warns(UserWarning, match="carries no identity"):
            resume(old)
        assert_same(run, complete_run)
        assert resume(RunDirectory(run.folder)) == ["resumed at step 12"]

    def test_a_damaged_checkpoint_is_reported(self, run, complete_run):
        old = without_identity(run)
        path = run.folder / "last.safetensors"
        path.write_bytes(flipped(path.read_bytes(), -1))
        with pytest.warns(UserWarning, match="carries no identity"):
            messages = resume(old)
        assert "renamed to broken.safetensors; the run continues from previous.safetensors, step 4" in messages[0]
        assert_same(run, complete_run)

    @pytest.mark.parametrize("forced", [False, True])
    def test_a_process_killed_while_it_writes_the_identity_can_be_resumed(self, run, complete_run, monkeypatch, forced):
        """Resume with the same command, whichever of the files were written."""

        class Killed(BaseException):
            pass

        if forced:
            edit(run, '"data": "copying"', '"data": "capping"')
        else:
            without_identity(run)
        rename = Path.replace
        for count in range(4):
            left = [count]

            def replace_file(self, to, left=left):
                if not left[0]:
                    raise Killed
                left[0] -= 1
                return rename(self, to)

            with monkeypatch.context() as patch, warnings.catch_warnings(action="ignore"):
                patch.setattr(Path, "replace", replace_file)
                with pytest.raises(Killed):
                    resume(RunDirectory(run.folder, force=forced))
        with warnings.catch_warnings(action="ignore"):
            resume(RunDirectory(run.folder, force=forced))
        assert_same(run, complete_run)
        assert resume(RunDirectory(run.folder)) == ["resumed at step 12"]
