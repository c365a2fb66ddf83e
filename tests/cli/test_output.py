"""Tests of progress bars of commands."""

import io
import sys

import pytest

from clearhead.cli.output import stage_progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "rank", "is_shown"), [(Terminal, "0", True), (Terminal, "1", False), (io.StringIO, "0", False)]
)
def test_stages_are_shown_on_the_terminal_of_the_first_rank(monkeypatch, stream, rank, is_shown):
    written = stream()
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("TERM", "xterm")
    with stage_progress() as report:
        report("converting tensors", 0, 272)
        report("converting tensors", 136, 272)
        report("running the model", 0, 0)
        report("converting tensors", 1, 3)
    shown = written.getvalue()
    assert bool(shown) == is_shown
    if is_shown:
        assert "1/3" in shown
