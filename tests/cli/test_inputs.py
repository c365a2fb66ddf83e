"""Tests of the texts that commands take: names of models and files are not read as texts."""

import io
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clearhead import Recording
from clearhead.cli import app
from clearhead.cli.inputs import texts_to_read


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Make a folder current that contains a model and a file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    (tmp_path / "book.txt").write_text("A text.")
    return tmp_path


@pytest.mark.parametrize("text", ["mine", "./mine", "en-ja", "missing.gguf"])
def test_name_of_a_model_is_refused(folder, text):
    with pytest.raises(ValueError, match=f"TEXT is '{text}', which is a model; expected --model {text}"):
        texts_to_read(text, None)


def test_name_of_a_file_is_refused(folder):
    with pytest.raises(ValueError, match=r"TEXT is 'book\.txt', which is a file; expected --file book\.txt"):
        texts_to_read("book.txt", None)


def test_hub_id_is_read_as_a_text_with_a_hint(folder, capsys):
    text = "sentence-transformers/all-MiniLM-L6-v2"
    assert texts_to_read(text, None) == [text]
    assert capsys.readouterr().err == f"reading '{text}' as a text; if it is a model, write --model {text}\n"


def test_dash_reads_standard_input(folder, monkeypatch):
    def pipe(content):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))

    pipe(b"Ein Text.\nZwei.\n")
    assert texts_to_read("-", None) == ["Ein Text.\nZwei.\n"]
    pipe(b"One.")
    assert texts_to_read(None, [Path("book.txt"), Path("-")]) == ["A text.", "One."]
    pipe(b" \n")
    with pytest.raises(ValueError, match="standard input is empty; expected a text"):
        texts_to_read("-", None)
    pipe(b"\xff")
    with pytest.raises(ValueError, match="standard input: not UTF-8 text"):
        texts_to_read("-", None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="standard input cannot be read by several processes; expected TEXT or --file"):
        texts_to_read("-", None)


@pytest.mark.slow
def test_commands_run_on_standard_input(tmp_path, made_once):
    def run(*arguments):
        done = CliRunner().invoke(app, [*map(str, arguments)], input="Thank you.\n")
        assert done.exit_code == 0, done.output
        return done.stdout

    for arguments in (["stats", "-", "--json"], ["stats", "--file", "-", "--json"], ["roles", "-", "--json"]):
        assert run(*arguments) == run(*arguments[:1], "Thank you.", "--json")
    assert run("translate", "-") == run("translate", "Thank you.")
    assert run("explain", "-", "--model", "en-ja", "--head", "cross.2.5", "--step", "weights").count("thank") == 1
    run("record", "-", "--output", tmp_path / "r.safetensors")
    assert Recording.load(tmp_path / "r.safetensors").input == "Thank you.\n"
    run("view", "-", "--output", tmp_path / "r.html")
    assert "Thank you." in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize("text", ["A text.", "and/or", "either / or", "mine is here", "x" * 5000, "a\0b"])
def test_texts_are_read_without_a_hint(folder, capsys, text):
    assert texts_to_read(text, None) == [text]
    assert capsys.readouterr().err == ""
