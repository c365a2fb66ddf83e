"""Tests of `make demo`, with and without a terminal."""

import os
import pty
import signal
import subprocess
import sys

import pytest

from support.paths import ROOT
from support.viewer_client import fetch

COMMAND = [sys.executable, str(ROOT / "examples" / "demo.py")]
pytestmark = pytest.mark.slow


def test_demo_without_a_terminal_writes_pages_and_ends(tmp_path):
    result = subprocess.run(
        [*COMMAND, str(tmp_path)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    for name in ("two-heads.html", "report.html"):
        assert (tmp_path / name).as_uri() in result.stdout
        assert (tmp_path / name).stat().st_size > 100_000
    assert "head 2.5 of the cross-attention" in result.stdout
    assert result.stdout.endswith("clearhead view\n")
    assert result.stderr == ""


def test_demo_in_a_terminal_serves_the_viewer_until_ctrl_c(tmp_path):
    terminal, inside = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, str(tmp_path)],
        stdin=inside,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={name: value for name, value in os.environ.items() if name not in ("BROWSER", "DISPLAY", "TERM")},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    os.close(inside)
    link = next(line.split()[1] for line in process.stdout if line.startswith("Open  http://"))
    assert fetch(link)[0] == 200
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    os.close(terminal)
    assert (process.returncode, errors) == (0, "")
    assert "Press Ctrl-C to stop." in output
