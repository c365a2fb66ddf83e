"""Tests of every option and argument with unusual values: a result or an error, never a traceback."""

import pytest

from support.hostile_input import ARGUMENTS, controls, run_cli
from support.recordings import decoder

# "?" is replaced by the unusual value. Every line is fast, or fails before it trains a model or serves a page.
COMMANDS = {
    "top level": ("?", "? --help", "--version ?", "--? explain"),
    "explain": ("explain ?", "explain song --digits ?", "explain song --step ?", "explain song --head ?",
                "explain song --format ?", "explain song --output ?"),
    "check": ("check ?", "check song --digits ?", "check song ?"),
    "stats": ("stats ?", "stats R --layers ?", "stats R --device ?", "stats R --dtype ?", "stats R --output ?",
              "stats R --spans ?", "stats R --spans ?=0:3 --json", "stats R --spans ?=0:3", "stats R --spans a=0:?",
              "stats --file ? --model en-ja", "stats hello --model ?"),
    "roles": ("roles ?", "roles R --layers ?", "roles R --treebank ?", "roles R --output ?"),
    "record": ("record R --output ?", "record --file ? --output o.safetensors",
               "record hello --model ? --output x.html", "record hello --engine ? --output o.safetensors",
               "record hello --max-tokens ? --output o.safetensors"),
    "view": ("view R --output ?", "view R --roles ? --output o.html", "view R --port ? --output o.safetensors"),
    "translate": ("translate hello --model ?", "translate hello --beams ? --device nowhere", "translate --file ?",
                  "translate --show ?"),
    "train": ("train --data ? --output R", "train --valid ? --output R", "train --config ? --output R",
              "train --steps ? --output R", "train --seed ? --output R", "train --resume --output ?"),
    "doctor": ("doctor ?",),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch, made_once):
    """Working directory, with low size limits so that rejections are fast."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLEARHEAD_MAX_TEXT_MIB", "1")
    monkeypatch.setenv("CLEARHEAD_MAX_LINE_KIB", "1")
    monkeypatch.setenv("CLEARHEAD_MAX_SENTENCE_TOKENS", "64")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def fill(folder):
    """Write a recording R, a file in place of a run's folder, and nested files. Commands may replace them."""
    decoder("abcdefghi").save(folder / "R.safetensors")
    (folder / "R").write_text("not a folder")
    (folder / "nested.toml").write_text("x = " + "[" * 5000)
    (folder / "nested.json").write_text("[" * 100_000)
    (folder / "é.toml").write_text("x = [[1]]\ntitle = 3")


@pytest.mark.attack
@pytest.mark.parametrize("command", COMMANDS)
def test_unusual_arguments_never_cause_a_traceback(folder, command):
    failures = []
    for line in COMMANDS[command]:
        fill(folder)
        for value in ARGUMENTS:
            recorded = [
                "R.safetensors" if part == "R" and line.split()[0] != "train" else part for part in line.split()
            ]
            arguments = [part.replace("?", value) for part in recorded]
            outcome = run_cli(*arguments)
            if outcome.traceback or outcome.code not in (0, 1, 2) or controls(outcome.stdout + outcome.stderr):
                failures.append(
                    f"{line} with {value[:40]!r}: {outcome.code}, {outcome.traceback or outcome.stderr[:300]}"
                )
            if outcome.code == 1 and command != "check":
                failures.append(f"{line} with {value[:40]!r}: exit code 1")
    assert not failures, "\n".join(failures)
