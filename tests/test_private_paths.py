"""Tests that no file which users share contains a path of the machine that wrote it."""

import sys
from pathlib import Path

import pytest
from transformers import AutoModel

from clearhead import check, record, report
from clearhead.explain import load as load_example
from clearhead.models import head_roles, load
from support.command_line import run
from support.private_paths import paths_found
from support.tiny_models import make
from support.tiny_tokenizer import tokenizer

PRIVATE = "secret-project"  # a folder
TEXT = "the dogs running . " * 5


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Private folder with a model in `tiny/model` and an empty folder `out`; it is the current one."""
    private = tmp_path / PRIVATE
    (private / "out").mkdir(parents=True)
    make("llama").save_pretrained(private / "tiny" / "model")
    tokenizer().save_pretrained(private / "tiny" / "model")
    (private / "text.txt").write_text(TEXT)
    monkeypatch.chdir(private)
    return private


@pytest.mark.parametrize("is_absolute", [True, False])
def test_files_of_python(folder, is_absolute):
    path = folder / "tiny" / "model" if is_absolute else Path("tiny", "model")
    model, out = AutoModel.from_pretrained(path), folder / "out"
    recording = record(model, TEXT, tokenizer=tokenizer(), values=True)
    assert recording.model == load(path).name == "tiny"
    recording.save(out / "recording.safetensors")
    recording["decoder"].layers[0].save(out / "weights.safetensors")
    report(recording, out / "report.html")
    (out / "roles.json").write_text(head_roles(recording).to_json())
    assert paths_found(out, PRIVATE) == []


@pytest.mark.slow
def test_files_of_commands_that_run_a_model(folder, monkeypatch):
    model, out, file = f"{folder}/tiny/model", f"{folder}/out", f"--file={folder}/text.txt"

    def written(*arguments):
        monkeypatch.setattr(sys, "argv", ["clearhead", *arguments])
        run(*arguments)

    written("record", "--model", model, file, "--output", f"{out}/r.safetensors")
    written("roles", "--model", model, file, "--output", f"{out}/roles.json")
    written("stats", "--model", model, file, "--output", f"{out}/stats.json")
    for style in ("html", "tex", "xlsx", "md", "json", "txt"):
        written("explain", TEXT, "--model", model, "--head", "decoder.1.2", "--output", f"{out}/head.{style}")
    written("view", "--model", model, file, f"--roles=../{PRIVATE}/out/roles.json", "--output", f"{out}/report.html")
    page = (folder / "out" / "report.html").read_text()
    assert "clearhead view --model model --file=text.txt --roles=roles.json --output report.html</" in page
    written("view", f"{out}/r.safetensors", "--title", "Not a / path", "--output", f"{out}/again.html")
    page = (folder / "out" / "again.html").read_text()
    assert "clearhead view r.safetensors --title &#39;Not a / path&#39; --output again.html</" in page
    assert paths_found(folder / "out", PRIVATE) == []


@pytest.mark.slow
def test_files_of_worked_examples(folder):
    lines = ["title = 'Mine'", "x = [[1, 0], [0, 1]]", "[[claims]]", "step = 'scores'", "values = [[9, 9], [9, 9]]"]
    (folder / "mine.toml").write_text("\n".join(lines))
    (folder / "notes.md").write_text("X = [[1, 0], [0, 1]]\n\nW_Q = [[1, 2], [3, 4]]\n\nQ = [[1, 9], [3, 4]]\n")
    out = folder / "out"
    for name in ("mine.toml", "notes.md"):
        for style in ("html", "tex", "xlsx", "md", "json", "txt", "toml"):
            run("explain", folder / name, "--output", out / f"{name}.{style}")
        for style in ("html", "md", "json", "txt", "toml"):
            run("check", folder / name, "--output", out / f"{name}-check.{style}", status=1)
        for style in ("html", "tex", "md", "toml"):
            run("exercise", folder / name, "--output", out / f"{name}-sheet.{style}")
    (out / "trace.html").write_text(load_example(folder / "mine.toml").trace()._repr_html_())
    (out / "audit.html").write_text(check(folder / "mine.toml")._repr_html_())
    for part in ("class", "sheets"):
        (folder / part).mkdir()
    run("exercise", folder / "mine.toml", "--output", folder / "sheets" / "0.toml")
    for seed in (0, 1):  # there is no sheet of seed 1
        run("exercise", folder / "mine.toml", "--seed", seed, "--output", folder / "class" / f"{seed}.toml")
    (folder / "class" / "3.toml").mkdir()
    for style in ("html", "md", "json", "txt", "csv"):
        marks = ("mark", folder / "class", "--exercise", folder / "sheets", "--output", out / f"marks.{style}")
        run(*marks, status=2)
    assert paths_found(out, PRIVATE) == []


def test_a_name_in_an_old_recording_is_shortened(folder):
    recording = record(make("llama"), TEXT, tokenizer=tokenizer())
    object.__setattr__(recording, "model", str(folder / "tiny" / "model"))  # as earlier versions
    recording.save(folder / "old.safetensors")
    run("view", folder / "old.safetensors", "--output", folder / "out" / "report.html")
    assert paths_found(folder / "out", PRIVATE) == []
