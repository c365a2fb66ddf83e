"""Tests of names of output files: a suffix chooses the format, or is refused if it is that of another format."""

import pytest

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
        ("view r.safetensors --output out.pdf", ".html or .htm"),
        ("view r.safetensors --output out.safetensors", ".html or .htm"),
        ("stats r.safetensors --output out.csv", ".json"),
        ("roles r.safetensors --output out.pdf", ".json"),
        ("record hello --output out.pdf", ".safetensors"),
        ("explain song --output out.pdf", ".txt, .json, .html, .md, .tex, .toml, .xlsx, or --format"),
        ("check song --output out.xlsx", ".txt, .json, .html, .md, .toml, or --format"),
        ("exercise song --output out.pdf", ".html, .md, .tex, .toml, or --format"),
        ("mark answers.toml --output out.pdf", ".txt, .json, .html, .md, .csv, or --format"),
        ("explain song --format html --output out.pdf", ".html"),
        ("explain song --format text --output out.html", ".txt"),
        ("check song --json --output out.html", ".json"),
        ("exercise song --format toml --output out.md", ".toml"),
        ("mark answers.toml --format csv --output out.xlsx", ".csv"),
        ("translate hello --output out.pdf", "a text file, such as out.txt"),
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
