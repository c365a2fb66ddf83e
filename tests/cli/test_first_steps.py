"""Tests of `clearhead` without arguments, and of shell completion."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clearhead.cli import app
from clearhead.cli.first_steps import FIRST_STEPS
from support.command_line import run

MAX_COLUMNS = 80


def test_five_commands_are_shown():
    lines = run().stdout.splitlines()
    shown = [line for line in lines if line.startswith("  clearhead ")]
    assert len(shown) == len(FIRST_STEPS) == 5
    assert {line.split()[1] for line in shown} <= {command.callback.__name__ for command in app.registered_commands}
    assert all(len(line) <= MAX_COLUMNS for line in lines[:-1])
    assert "pip install" not in "".join(lines)


def test_missing_extras_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "bokeh", None)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    lines = run().stdout.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("  clearhead view "))
    assert lines[first + 1].strip() == "first: pip install 'clearhead[view,translate]'"
    assert lines[first + 3].strip() == "first: pip install 'clearhead[view]'"


def completions(words, shell="bash"):
    """Return what a shell offers after these words."""
    variables = {
        "_CLEARHEAD_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
        "_TYPER_COMPLETE_ARGS": words,
    }
    script = Path(sys.executable).parent / "clearhead"
    result = subprocess.run([script], capture_output=True, text=True, env={**os.environ, **variables}, check=True)
    return result.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("clearhead vi", ["view"]),
        ("clearhead view --no", ["--no-browser", "--note"]),
        ("clearhead tra", ["train", "translate"]),
    ],
)
def test_shell_completes_commands_and_options(words, offered):
    assert completions(words) == offered


def test_zsh_completes_with_help():
    assert '"view":"Show' in " ".join(completions("clearhead vi", "zsh"))
