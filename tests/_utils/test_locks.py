"""Tests of locks on folders: one process at a time, and a killed process does not block."""

import errno
import os
import socket
import subprocess
import sys

import pytest

from clearhead._utils.locks import locked

HOLD = """
import pathlib, sys
from clearhead._utils.locks import locked
with locked(pathlib.Path(sys.argv[1])):
    print(flush=True)
    input()
"""


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        process.stdout.readline()
        holder = f"process {process.pid} on {socket.gethostname()}"
        with pytest.raises(BlockingIOError) as caught, locked(tmp_path):
            pass
        assert str(caught.value) == f"{tmp_path}: in use by {holder}; wait for it to end, or end it"
    finally:
        process.kill()
        process.communicate()
    assert {path.name for path in tmp_path.iterdir()} == {".lock", ".lock.holder"}  # of the killed process
    with locked(tmp_path):
        assert (tmp_path / ".lock.holder").read_text() == f"process {os.getpid()} on {socket.gethostname()}"
    assert not list(tmp_path.iterdir())


def test_an_error_releases_the_lock(tmp_path):
    with pytest.raises(RuntimeError, match="within"), locked(tmp_path):
        raise RuntimeError("within")
    with locked(tmp_path):
        pass


def test_an_error_names_the_folder_not_the_lock_file(tmp_path, monkeypatch):
    def acquire(self, blocking):
        raise OSError(errno.EROFS, "Read-only file system", str(tmp_path / ".lock"))

    monkeypatch.setattr("filelock.FileLock.acquire", acquire)
    with pytest.raises(OSError, match=f"Read-only file system: '{tmp_path}'$"), locked(tmp_path):
        pass
