"""Tests of the process that writes the requests of a server, also when the server is killed."""

import os
import subprocess
import sys

import pytest

from clearhead.recording.recording import Recording
from clearhead.serving.journal import take_missing
from clearhead.serving.results import read_requests
from support.paths import ROOT

SERVER = """
import os, signal, sys, time
from pathlib import Path
from clearhead.serving.run_folder import run_folder
from clearhead.serving.settings import Settings
from clearhead.serving.writer_process import WriterProcess
from support.served_requests import Tokenizer, finished_request

run_folder()
writer = WriterProcess(Settings(output=Path(sys.argv[1])), "model", Tokenizer, [0, 1, 2])
for index in range(24):
    writer.put(finished_request(f"r-{index}"))
writer.set_under_way(3)  # which are not finished
if sys.argv[2] == "end":
    writer.close()
else:
    os.killpg(0, getattr(signal, sys.argv[2]))
    time.sleep(60)
"""
PATHS = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "CLEARHEAD_RUN"} | {"PYTHONPATH": PATHS}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["end", "SIGTERM", "SIGINT", "SIGKILL"])
def test_requests_are_written_after_the_end_of_the_server(tmp_path, how, caplog):
    # the process inherits standard output, so this waits for it
    command = [sys.executable, "-c", SERVER, str(tmp_path), how]
    done = subprocess.run(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    if how == "end":
        assert done.returncode == 0, done.stdout.decode()
    assert [line["request"] for line in read_requests(tmp_path)] == [f"r-{index}" for index in range(24)]
    assert len([Recording.load(path) for path in (tmp_path / "recordings").iterdir()]) == 24
    assert take_missing(tmp_path) == 3
    assert take_missing(tmp_path) == 0
