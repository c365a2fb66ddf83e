"""Processes that serve the viewer until Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def start(
    command: Sequence[str], *, environment: Mapping[str, str], folder: Path | None = None
) -> subprocess.Popen[str]:
    """Start a command without a terminal. Ctrl-C reaches it as in a shell."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=folder,
        # a shell without job control starts background processes, and so the tests, with SIGINT ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def read_link(process: subprocess.Popen[str]) -> tuple[str, list[str]]:
    """Return the link that a viewer prints and the lines before it. Raise if the process ends without a link."""
    before = []
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("Open  http://"):
            return line.split()[1], before
        before.append(line)
    raise AssertionError(f"the viewer ended without a link: {before} {process.communicate()[1]}")


def stop(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Press Ctrl-C. Return the exit status, the rest of standard output, and standard error."""
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    return process.returncode, output, errors
