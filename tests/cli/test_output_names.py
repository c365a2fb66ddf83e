"""Tests of names of output files: a suffix chooses the format, or is refused if it is that of another format."""

from pathlib import Path

import pytest

from clearhead import Recording, report
from support.command_line import error_of, run
from support.recordings import decoder


@pytest.fixture(autouse=True)
def recording(tmp_path, monkeypatch):
    """Make a folder current that contains a recording."""
    monkeypatch.chdir(tmp_path)
    decoder("abcdef").save("r.safetensors")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("view r.safetensors --output out.pdf", ".html"),
        ("view r.safetensors --output out.safetensors", ".html"),
        ("stats r.safetensors --output out.csv", ".json"),
        ("roles r.safetensors --output out.pdf", ".json"),
        ("record hello --output out.pdf", ".safetensors"),
        ("explain song --output out.pdf", ".txt, .html, .md, .tex, .json, .toml, .xlsx"),
        ("check song --output out.xlsx", ".txt, .html, .md, .json, .toml"),
        ("exercise song --output out.pdf", ".html, .md, .tex, .toml"),
        ("mark answers.toml --output out.pdf", ".txt, .json, .md, .html, .csv"),
        ("explain song --format html --output out.pdf", ".html"),
        ("explain song --format text --output out.html", ".txt"),
        ("check song --json --output out.html", ".json"),
        ("exercise song --format toml --output out.md", ".toml"),
        ("mark answers.toml --format csv --output out.xlsx", ".csv"),
        ("translate hello --output out.pdf", ".txt, .json, .html, .md, .tex, .toml, .csv, .tsv, .svg"),
        ("check song --draft out.md", ".toml"),
    ],
)
def test_suffix_of_another_format_is_refused(tmp_path, arguments, expected):
    error = error_of(*arguments.split())
    assert "out." in error
    assert error.endswith(expected)
    assert [path.name for path in tmp_path.iterdir()] == ["r.safetensors"]


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        ("explain song --output out.html", b"<!doctype html>"),
        ("explain song --output out.tex", b"\\documentclass"),
        ("explain song --output out.xlsx", b"PK"),
        ("explain song --output out.TOML", b"# Six words"),
        ("explain song --output out.txt", b"List new ideas for a song\n"),
        ("explain song --output out", b"List new ideas for a song\n"),
        ("explain song --format markdown --output out.qmd", b"# List new ideas"),
        ("explain song --output out.log", b"List new ideas for a song\n"),
        ("explain song --output out.text", b"List new ideas for a song\n"),
        ("explain song --output out-v1.2", b"List new ideas for a song\n"),
        ("explain song --output out.markdown", b"# List new ideas"),
        ("explain song --output out.htm", b"<!doctype html>"),
        ("stats r.safetensors --output stats-llama-3.2", b"{"),
        ("check two-heads --output out.json", b'{"title": '),
        ("check two-heads --output out.md", b"# "),
        ("exercise song --output out", b"# "),
        ("stats r.safetensors --output out.JSON", b"{"),
        ("view r.safetensors --output out.htm", b"<!doctype html>"),
        ("view r.safetensors --output out", b"<!doctype html>"),
    ],
)
def test_format_follows_the_suffix(tmp_path, arguments, start):
    run(*arguments.split(), status=int(arguments.startswith("check")))
    [path] = (path for path in tmp_path.iterdir() if path.name != "r.safetensors")
    assert path.read_bytes().startswith(start)


@pytest.mark.parametrize("name", ["page.ja.html", "notes.tex", "notes.markdown", "out-1.5"])
def test_translations_are_written_to_every_text_file(tmp_path, name):
    run("translate", "hello", "--output", name)
    assert len((tmp_path / name).read_text(encoding="utf-8").splitlines()) == 1


def test_python_functions_refuse_the_same_names(tmp_path):
    recording = Recording.load("r.safetensors")
    for write in (recording.save, recording.weights("decoder.0.0").save):
        with pytest.raises(ValueError, match=r"path is o\.pdf; expected a name that ends in \.safetensors$"):
            write("o.pdf")
        write("llama-3.2")
    with pytest.raises(ValueError, match=r"path is o\.pdf; expected a name that ends in \.html$"):
        report(recording, "o.pdf")
    assert report(recording, "my.report.v2").path == Path("my.report.v2")
    assert {path.name for path in tmp_path.iterdir()} == {"r.safetensors", "llama-3.2", "my.report.v2"}
