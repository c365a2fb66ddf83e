"""Tests of `clearhead train` and `clearhead translate`, and of `stats` and `roles` on translation models."""

import gzip
import io
import json
import re
import shutil
import signal

import pytest
from rich.cells import cell_len
from rich.console import Console
from safetensors import SafetensorError
from typer.testing import CliRunner

from clearhead.cli import app
from clearhead.cli.tables import print_alignment
from clearhead.recording.row_labels import row_label
from clearhead.translation import Translator, _trainer
from clearhead.translation.data import dataset
from clearhead.translation.data._batching import collate
from clearhead.translation.heads import read_film
from clearhead.translation.run_directory import RunDirectory
from clearhead.weights import serialization
from support.private_paths import paths_found
from support.toy_training import TOML, sentences, written_columns

BOOK, HON = "I read a book in the library yesterday.", "私は昨日図書館で本を読んだ。"


def run(*arguments, status=0, stdin=None):
    result = CliRunner().invoke(
        app, [str(argument) for argument in arguments], env={"COLUMNS": "200"}, input=stdin, catch_exceptions=False
    )
    assert result.exit_code == status, result.output
    return result


def assert_rejected(message, *arguments):
    """Check that a command prints one line on stderr, and nothing on stdout."""
    result = run(*arguments, status=2)
    assert message in result.stderr
    assert result.stderr.startswith("clearhead: ")
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Change to a directory with a small corpus and a small configuration."""
    monkeypatch.chdir(tmp_path)
    written_columns(tmp_path / "copies.tsv")
    (tmp_path / "tiny.toml").write_text(TOML.replace("steps = 12", "steps = 4"))
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folder of a run, and the output of its training."""
    folder = tmp_path_factory.mktemp("trained")
    columns = written_columns(folder / "copies.tsv")
    (folder / "tiny.toml").write_text(TOML.replace("steps = 12", "steps = 4"))
    return folder / "run", run(
        "train", "--data", columns, "--config", folder / "tiny.toml", "--output", folder / "run", "--device", "cpu"
    )


class TestTraining:
    def test_run_folder_contains_checkpoints_and_metrics(self, trained):
        folder, result = trained
        names = {"config.json", "tokenizer.json", "metrics.jsonl"}
        names |= {f"{name}.safetensors" for name in ("best", "last", "previous")}
        assert {path.name for path in folder.iterdir()} == names
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == [0, 4]
        assert set(lines[-1]) == {"step", "epoch", "loss", "tokens_per_second", "validation", "roles"}
        assert json.loads((folder / "config.json").read_text())["config"]["model"]["d_model"] == 16
        assert json.loads((folder / "config.json").read_text())["data"] == "copies.tsv"
        assert paths_found(folder, str(folder.parent)) == []
        steps = [line for line in result.stderr.splitlines() if line.startswith("step ")]
        assert len(steps) == 2
        assert steps[0].startswith("step 0: validation loss ")
        assert steps[1].startswith(f"step 4: loss {lines[1]['loss']:.3f}, validation loss ")
        assert "6 of 6 heads" in result.stdout or "heads with a clear role" in result.stdout

    def test_separate_and_gzipped_files_give_the_same_run(self, folder, trained):
        """Train on the same data in two other file formats."""
        texts = sentences(47)
        (folder / "a.en").write_text("".join(f"{text}\n" for text in texts))
        (folder / "a.xx.gz").write_bytes(gzip.compress("".join(f"{text.upper()}\n" for text in texts).encode()))
        run("train", "--data", "a.en,a.xx.gz", "--config", "tiny.toml", "--output", "two")
        packed = gzip.compress((folder / "copies.tsv").read_bytes())
        (folder / "copies.tsv.gz").write_bytes(packed)
        run("train", "--data", "copies.tsv.gz", "--config", "tiny.toml", "--output", "packed")
        expected = (trained[0] / "best.safetensors").read_bytes()
        assert (folder / "two" / "best.safetensors").read_bytes() == expected
        assert (folder / "packed" / "best.safetensors").read_bytes() == expected

    def test_several_data_files_and_a_validation_set(self, folder):
        written_columns(folder / "more.tsv", 50)
        written_columns(folder / "valid.tsv", 5)
        arguments = ("--data", "copies.tsv", "--data", "more.tsv", "--valid", "valid.tsv")
        result = run("train", *arguments, "--config", "tiny.toml", "--output", "run", "--steps", "2", "--seed", "3")
        assert "10 pairs that are held out for validation left out" in result.stderr
        assert "42 pairs that are duplicates left out" in result.stderr
        settings = RunDirectory(folder / "run").read()[0].training
        assert (settings.steps, settings.seed) == (2, 3)

    def test_grammar_run_reports_relations_and_can_be_resumed(self, folder, monkeypatch):
        monkeypatch.setattr(dataset, "GRAMMAR_EPOCH_SIZE", 60)
        monkeypatch.setattr(dataset, "PROBE_SIZE", 60)
        result = run("train", "--config", "tiny.toml", "--output", "run", "--film-text", "we  dance .")
        for relation in ("noun", "tense", "verb → subject"):
            assert relation in result.stdout
        assert read_film(RunDirectory("run"))["text"] == "we dance ."
        page = (folder / "run" / "film.html").read_text()
        assert "<title>Heads while they learn: we dance .</title>" in page
        assert "wrote run/film.html" in result.stderr
        assert (folder / "run" / "heads.svg").read_text().startswith("<?xml")
        assert "wrote run/heads.svg" in result.stderr
        assert set(RunDirectory("run").metrics()[0]["heads"]) >= {"noun", "tense", "verb → subject"}
        again = run("train", "--resume", "--output", "run")
        assert "resumed at step 4" in again.stderr
        assert again.stdout == result.stdout
        assert (folder / "run" / "film.html").read_text() == page

    def test_an_edited_setting_is_resumed_only_with_force(self, folder, trained):
        shutil.copytree(trained[0], "edited")
        path = folder / "edited" / "config.json"
        path.write_text(path.read_text().replace('"clip": 1.0', '"clip": 2.0'))
        arguments = ("train", "--resume", "--output", "edited", "--data", "copies.tsv")
        assert_rejected("edited/config.json: changed since it was written (training.clip is 2.0; expected", *arguments)
        assert_rejected("training.clip is 2.0", "translate", "ka ki", "--model", "edited")
        assert "training.clip is 2.0; expected 1.0); accepted" in run(*arguments, "--force").stderr
        assert "accepted" not in run(*arguments).stderr

    def test_rejects_invalid_arguments(self, folder, trained):
        (folder / "a.en").write_text("one\ntwo\nthree\n")
        (folder / "a.ja").write_text("一\n二\n")
        (folder / "bad.tsv").write_text("one\t一\ntwo\n")
        (folder / "other.tsv").write_text((folder / "copies.tsv").read_text() + "ka\tKA\n")
        (folder / "unknown.toml").write_text("[training]\nsteps = 4\nepochs = 3\n")
        (folder / "broken.toml").write_text("[training\n")
        (folder / "deep.toml").write_text("a = " + "[" * 3000)
        done = trained[0]
        for message, *arguments in (
            ("line 3 of a.en has no counterpart", "--data", "a.en,a.ja"),
            ("bad.tsv, line 2: has 1 column; expected 2", "--data", "bad.tsv"),
            ("none.tsv: there is no such file", "--data", "none.tsv"),
            ("unknown.toml: training.epochs is not a known key", "--config", "unknown.toml"),
            ("broken.toml: ", "--config", "broken.toml"),
            ("deep.toml: nested too deeply", "--config", "deep.toml"),
            ("none.toml: there is no such file", "--config", "none.toml"),
            ("--valid is given without --data", "--valid", "copies.tsv"),
            ("cannot be combined with --resume", "--resume", "--config", "tiny.toml"),
            ("cannot be combined with --resume", "--resume", "--steps", "3"),
            ("cannot be combined with --resume, which continues the film", "--resume", "--film"),
            ("has words that the grammar does not have: 'robot'", "--film-text", "did the robot wear a hat ?"),
            ("--film cannot be combined with --data; only the built-in grammar", "--data", "copies.tsv", "--film"),
            ("run: contains no run", "--resume"),
            ("--force is given without --resume", "--force"),
            ("--device is 'nowhere', which cannot be used here", "--device", "nowhere"),
            ("--device is 'meta', which cannot be used here", "--device", "meta"),
            ("data has 47 pairs, but 500 are held out for validation", "--data", "copies.tsv"),
            ("dtype is torch.float16", "--data", "copies.tsv", "--config", "tiny.toml", "--dtype", "float16"),
            ("already contains a run", "--data", "copies.tsv", "--config", "tiny.toml", "--output", done),
            ("the data are not those of the run", "--data", "other.tsv", "--resume", "--output", done),
        ):
            assert_rejected(message, "train", *arguments)
        assert not (folder / "run").exists()

    @pytest.mark.parametrize(("signal_number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
    def test_signal_sets_the_exit_code(self, folder, monkeypatch, signal_number, code):
        def collating(rows):
            signal.raise_signal(signal_number)
            return collate(rows)

        monkeypatch.setattr(_trainer, "collate", collating)
        result = run("train", "--data", "copies.tsv", "--config", "tiny.toml", "--output", "run", status=code)
        assert "stopped at step 1 and saved a checkpoint; continue with --resume" in result.stderr
        assert "Traceback" not in result.output

    def test_rejects_metrics_without_head_measurements(self, folder, monkeypatch):
        monkeypatch.setattr(dataset, "GRAMMAR_EPOCH_SIZE", 60)
        monkeypatch.setattr(dataset, "PROBE_SIZE", 60)
        run("train", "--config", "tiny.toml", "--output", "run")
        (folder / "run" / "metrics.jsonl").write_text('{"step": 4, "heads": {}}\n')
        result = run("train", "--resume", "--output", "run", status=2)
        assert "metrics.jsonl: not the head accuracies of a run (KeyError: 'validation')" in result.stderr
        assert "Traceback" not in result.output

    @pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SafetensorError("No space left")])
    def test_full_disk_prints_one_line(self, folder, monkeypatch, error):
        def save_file(tensors, path, metadata):
            raise error

        monkeypatch.setattr(serialization, "save_file", save_file)
        result = run("train", "--data", "copies.tsv", "--config", "tiny.toml", "--output", "run", status=2)
        message = [line for line in result.stderr.splitlines() if "o space left" in line]
        assert len(message) == 1
        assert message[0].startswith("clearhead: ")
        assert "Traceback" not in result.output
        assert not [path.name for path in (folder / "run").iterdir() if path.name.startswith(".")]


class TestTranslating:
    def test_translates_a_sentence(self):
        result = run("translate", BOOK)
        assert result.stdout == f"{HON}\n"
        assert result.stderr == ""

    def test_translates_files_line_by_line(self, tmp_path):
        (tmp_path / "in.txt").write_bytes(f"{BOOK}\r\n\n{BOOK.lower()}\n\n".encode())
        (tmp_path / "more.txt").write_text(BOOK)
        (tmp_path / "empty.txt").write_text("")
        files = [part for name in ("in", "empty", "more") for part in ("--file", tmp_path / f"{name}.txt")]
        assert run("translate", *files).stdout == f"{HON}\n\n{HON}\n\n{HON}\n"
        assert run("translate", "--file", tmp_path / "empty.txt").stdout == ""

    def test_reads_standard_input_and_writes_output_file(self, tmp_path):
        assert run("translate", "--file", "-", stdin=f"{BOOK}\n\n").stdout == f"{HON}\n\n"
        result = run("translate", "--file", "-", "--output", tmp_path / "out.txt", stdin=f"\n{BOOK}")
        assert result.stdout == ""
        assert result.stderr == f"wrote {tmp_path / 'out.txt'}\n"
        assert (tmp_path / "out.txt").read_text() == f"\n{HON}\n"

    def test_show_prints_the_alignment(self):
        shown = run("translate", BOOK, "--show").stdout
        first, label, header, *rows = shown.splitlines()
        assert first == HON
        assert label == "attention of each token to the source words, mean of all 32 cross heads:"
        assert header.split() == ["i", "read", "a", "book", "in", "the", "library", "yesterday", "."]
        assert "".join(row.partition("→")[2].split()[0] for row in rows) == HON  # the token that the row writes

    def test_unknown_words_are_columns(self):
        console = Console(file=io.StringIO(), width=80)
        with pytest.warns(UserWarning, match="never seen in training: '☃'"):
            recording = Translator.load().record("I like ☃.", target=HON)
        print_alignment(console, recording)
        header = console.file.getvalue().splitlines()[0]
        assert header.index("like") < header.index("<unk>") < header.index(".")

    def test_alignment_is_split_in_a_narrow_terminal(self):
        console = Console(file=io.StringIO(), width=30)
        recording = Translator.load().record(BOOK)
        print_alignment(console, recording)
        shown = console.file.getvalue()
        assert all(row_label(recording["cross"], row) in shown for row in range(len(recording["cross"].queries) - 1))
        assert re.findall("[a-z]{2,}", shown) == ["read", "book", "in", "the", "library", "yesterday"]
        assert max(map(cell_len, shown.splitlines())) <= 30

    def test_show_prints_an_alignment_for_each_line(self):
        shown = run("translate", "--file", "-", "--show", stdin=f"{BOOK}\n\nThank you.\n").stdout.splitlines()
        assert shown.count(HON) == 1
        assert sum("yesterday" in line or "thank" in line for line in shown) == 2
        assert "" in shown

    def test_warning_prints_one_line(self):
        result = run("translate", "--file", "-", stdin=f"{BOOK}\nI like ☃.\n")
        assert result.stderr == "clearhead: line 2: never seen in training: '☃'\n"
        assert result.stdout.splitlines()[0] == HON

    def test_show_without_known_words_prints_a_note(self):
        shown = run("translate", "👩\u200d👩\u200d👧", "--show").stdout
        assert shown.endswith("no word of the source is in the model's vocabulary, so there is no alignment to show\n")

    def test_rejects_too_many_beams_and_too_long_sentences(self, tmp_path, monkeypatch):
        message = run("translate", BOOK, "--beams", "100000", status=2).stderr
        limit = "1,024 beams (CLEARHEAD_MAX_BEAMS raises the limit)"
        assert message == f"clearhead: beams is 100000; expected at most {limit}\n"
        (tmp_path / "word.txt").write_text("a" * 5000)
        message = run("translate", "--file", tmp_path / "word.txt", status=2).stderr
        limit = "4,096 tokens (CLEARHEAD_MAX_SENTENCE_TOKENS raises the limit)"
        assert message == f"clearhead: text has 5,001 tokens; expected at most {limit}\n"
        monkeypatch.setenv("CLEARHEAD_MAX_BEAMS", "2")
        assert run("translate", BOOK, "--beams", "2").stdout == f"{HON}\n"

    def test_control_characters_of_a_translation_are_escaped(self, monkeypatch):
        monkeypatch.setattr(Translator, "stream", lambda self, texts, beams: iter(["\x1b[2J本\u3000[/]"]))
        assert run("translate", BOOK).stdout == "\\x1b[2J本\u3000[/]\n"

    def test_translates_with_a_trained_run(self, trained):
        assert run("translate", sentences(1)[0], "--model", trained[0], "--beams", "1").stdout.count("\n") == 1

    def test_rejects_invalid_arguments(self, tmp_path):
        (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
        (tmp_path / "in.txt").write_text(BOOK)
        for message, *arguments in (
            ("TEXT is missing; expected a sentence to translate, or --file",),
            ("TEXT and --file are both given; expected one of them", BOOK, "--file", tmp_path / "in.txt"),
            ("nowhere: there is no such folder", BOOK, "--model", "nowhere"),
            ("contains no run", BOOK, "--model", tmp_path),
            ("none.txt", "--file", tmp_path / "none.txt"),
            ("bytes.txt, line 1: not UTF-8", "--file", tmp_path / "bytes.txt"),
            ("--device is 'nowhere'", BOOK, "--device", "nowhere"),
            ("--output cannot be combined with --show", BOOK, "--show", "--output", tmp_path / "out.txt"),
            ("there is no folder", BOOK, "--output", tmp_path / "none" / "out.txt"),
        ):
            assert_rejected(message, "translate", *arguments)
        assert "beams" in run("translate", BOOK, "--beams", "0", status=2).stderr


class TestShowingHeads:
    def test_stats_list_the_heads_of_every_stack(self):
        table = run("stats", "--model", "en-ja", BOOK).stdout
        assert "en-ja: means over queries" in table
        for stack in ("encoder", "decoder", "cross"):
            assert len([line for line in table.splitlines() if stack in line]) == 4 * 8
        document = json.loads(run("stats", "--model", "en-ja", BOOK, "--json", "--layers", "3").stdout)
        assert document["heads"]["layer"] == [3] * 24

    def test_roles_of_the_bundled_model(self):
        shown = run("roles", "--model", "en-ja", BOOK).stdout
        assert "en-ja: heads with a clear role" in shown
        assert "Best heads" in shown

    def test_stats_of_a_trained_run(self, trained):
        document = json.loads(run("stats", "--model", trained[0], sentences(1)[0], "--json").stdout)
        assert document["model"] == "run"
        assert len(document["heads"]["layer"]) == 3 * 2

    def test_rejects_invalid_arguments(self):
        for command in ("stats", "roles"):
            assert_rejected(
                "--layers is '9', but the layers are 0 to 3", command, "--model", "en-ja", BOOK, "--layers", "9"
            )
            assert_rejected("expected torch.float32", command, "--model", "en-ja", BOOK, "--dtype", "bfloat16")
