"""Tests of writers in processes that end or are killed."""

import os
import subprocess
import sys
import time

import pytest

from clearhead.recording.recording import Recording
from clearhead.serving.results import SeenRequest, SeenRequests, read_requests
from clearhead.serving.settings import Settings
from clearhead.serving.writer import Writer
from support.paths import ROOT
from support.served_requests import Tokenizer, finished_request

ENDLESS = """
import itertools, sys
from pathlib import Path
from clearhead.serving.settings import Settings
from clearhead.serving.writer import Writer
from support.served_requests import Tokenizer, finished_request

writer = Writer(Settings(output=Path(sys.argv[1]), arrays=True), "model", Tokenizer)
for index in itertools.count():
    writer.put(finished_request(f"{sys.argv[2]}-{index}"))
    if index % 10 == 9:
        writer.flush()
"""

ENDING = """
import multiprocessing, sys
from pathlib import Path
from clearhead.serving.settings import Settings
from clearhead.serving.writer import Writer
from support.served_requests import Tokenizer, finished_request

def write(name):
    writer = Writer(Settings(output=Path(sys.argv[1])), "model", Tokenizer)
    for index in range(20):
        writer.put(finished_request(f"{name}-{index}"))

process = multiprocessing.get_context("fork").Process(target=write, args=("child",))
process.start()
process.join()
write("parent")
"""
PATHS = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
ENVIRONMENT = {**os.environ, "PYTHONPATH": PATHS}


@pytest.mark.slow
def test_processes_write_what_is_queued_before_they_end(tmp_path):
    subprocess.run([sys.executable, "-c", ENDING, str(tmp_path)], env=ENVIRONMENT, check=True)
    expected = [f"{name}-{index}" for name in ("child", "parent") for index in range(20)]
    assert [line["request"] for line in read_requests(tmp_path)] == expected
    assert len(list((tmp_path / "recordings").iterdir())) == 40


@pytest.mark.attack
def test_a_killed_process_leaves_whole_files_only(tmp_path):
    """Temporary files that it left are removed by the next process, and an incomplete line is skipped."""
    folder = tmp_path / "out"
    for attempt in range(2):
        process = subprocess.Popen([sys.executable, "-c", ENDLESS, str(folder), str(attempt)], env=ENVIRONMENT)
        try:
            while process.poll() is None and not any(folder.glob(f"recordings/{attempt}-2[0-9].safetensors")):
                time.sleep(0.003)
            time.sleep(0.0113 * attempt)
        finally:
            process.kill()
            assert process.wait() == -9
        lines = {line["request"]: line for line in read_requests(folder)}
        recordings = list((folder / "recordings").iterdir())
        assert len(recordings) > 20 * attempt
        for path in recordings:
            Recording.load(path)
        for path in (folder / "statistics").iterdir():
            SeenRequest.load(path)
        for line in lines.values():
            assert (folder / "recordings" / line["recording"]).is_file()
        assert len(SeenRequests(folder)) == len(lines)
    writer = Writer(Settings(output=folder, arrays=True), "model", Tokenizer)
    writer.put(finished_request("last"))
    assert writer.close(60)
    assert sorted(path.name for path in folder.iterdir()) == ["recordings", "requests.jsonl", "statistics"]
    assert list(read_requests(folder))[-1]["request"] == "last"
