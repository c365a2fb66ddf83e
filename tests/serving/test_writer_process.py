"""Tests of the process that writes the requests of a server, also when the server is killed."""

import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clearhead._utils.temporaries import host_id
from clearhead.recording.recording import Recording
from clearhead.serving import journal as journal_module
from clearhead.serving import run_folder as run_folder_module
from clearhead.serving.journal import Journal, take_missing
from clearhead.serving.metric_families import metric_families, read_snapshots
from clearhead.serving.results import read_requests
from clearhead.serving.run_folder import is_locked, run_folder
from clearhead.serving.settings import Settings
from clearhead.serving.transfer import request_bytes
from clearhead.serving.writer_process import WriterProcess
from support.paths import ROOT
from support.served_requests import Tokenizer, finished_request, small_request

SERVER = """
import os, sys, time
from pathlib import Path
from clearhead.serving.run_folder import run_folder
from clearhead.serving.settings import Settings
from clearhead.serving.writer_process import WriterProcess
from support.served_requests import Tokenizer, finished_request

print(run_folder())
writer = WriterProcess(Settings(output=Path(sys.argv[1])), "model", Tokenizer, [0, 1, 2])
for index in range(24):
    writer.put(finished_request(f"r-{index}"))
writer.set_under_way(3)
if sys.argv[2] != "0":
    os.killpg(0, int(sys.argv[2]))
    time.sleep(60)
"""
PATHS = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "CLEARHEAD_RUN"} | {"PYTHONPATH": PATHS}


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_requests_are_written_after_the_end_of_the_server(tmp_path, number):
    command = [sys.executable, "-c", SERVER, str(tmp_path), str(int(number))]
    # the process that writes inherits the output, so this waits for its end
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, start_new_session=True, check=False)
    assert (done.returncode == 0) == (number == 0), done.stderr
    assert [line["request"] for line in read_requests(tmp_path)] == [f"r-{index}" for index in range(24)]
    assert len([Recording.load(path) for path in (tmp_path / "recordings").iterdir()]) == 24
    assert take_missing(tmp_path) == 3
    if number == 0:
        assert not Path(done.stdout.strip()).exists()


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return the folder of the run, which is that of the test."""
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.setenv("CLEARHEAD_RUN", str(folder))
    return folder


def requests_of(run):
    """Return the counts of requests as the page of metrics has them."""
    samples = next(family.samples for family in metric_families(read_snapshots(run)) if "requests" in family.name)
    return {outcome: count for (_, outcome), (count, _) in samples.items()}


def wait_for_end(run):
    deadline = time.monotonic() + 60
    while any(map(run_folder_module._is_writing, run.glob("*.lock"))):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_metrics_need_no_disk_and_begin_with_0(tmp_path, run):
    writer = WriterProcess(Settings(output=tmp_path / "out"), "model", Tokenizer, [0, 1, 2])
    assert requests_of(run) == dict.fromkeys(("observed", "recorded", "dropped", "failed", "skipped"), 0)
    (tmp_path / "out" / "requests.jsonl").mkdir()  # no line can be written
    writer.put(finished_request(record=False))
    writer.count("skipped")
    assert writer.flush(60)
    writer.close()
    wait_for_end(run)
    assert requests_of(run) == {"observed": 0, "recorded": 0, "dropped": 0, "failed": 1, "skipped": 1}
    assert not list((tmp_path / "out" / "under-way").iterdir())


@pytest.mark.slow
def test_requests_beyond_the_memory_are_dropped(tmp_path, run, caplog):
    killed = Journal.create(tmp_path)
    killed.set_requests(2, 0)
    killed.file.close()
    size = request_bytes(small_request("a"))
    writer = WriterProcess(Settings(output=tmp_path, memory=size), "model", Tokenizer)
    assert "2 requests were under way when an earlier server ended" in caplog.text
    writer.put(small_request("a"))
    writer.put(small_request("b"))  # while the process starts
    assert writer.flush(60)
    writer.put(small_request("c"))
    writer.put(None)
    writer.close()
    wait_for_end(run)
    assert [line["request"] for line in read_requests(tmp_path)] == ["a", "c"]
    assert requests_of(run) == {"observed": 2, "recorded": 0, "dropped": 1, "failed": 1, "skipped": 0}


@pytest.mark.slow
def test_more_requests_wait_than_a_socket_takes(tmp_path, run):
    writer = WriterProcess(Settings(output=tmp_path), "model", Tokenizer)
    for index in range(1500):
        writer.put(small_request(str(index)))
    writer.close()
    wait_for_end(run)
    assert [line["request"] for line in read_requests(tmp_path)] == [str(index) for index in range(1500)]


@pytest.mark.slow
def test_requests_fail_if_the_process_has_died(tmp_path, run):
    writer = WriterProcess(Settings(output=tmp_path), "model", Tokenizer)
    writer._socket.shutdown(socket.SHUT_RDWR)
    wait_for_end(run)
    for name in ("a", "b"):
        writer.put(small_request(name))
    assert requests_of(run)["failed"] == 2
    assert writer._unwritten_bytes == 0
    assert writer.flush(60)
    writer.close()


@pytest.mark.slow
def test_the_process_imports_from_the_same_folders(tmp_path, run, monkeypatch):
    folder, current = tmp_path / "own: modules", tmp_path / "current"
    for path in (folder / "own_tokenizer.py", current / "torch.py"):
        path.parent.mkdir()
        path.write_text("def load():\n    return None\n")
    monkeypatch.setattr(sys, "path", [Path("ignored"), str(folder), *filter(None, sys.path)])
    monkeypatch.chdir(current)  # whose torch.py is not torch
    load = importlib.import_module("own_tokenizer").load
    writer = WriterProcess(Settings(output=tmp_path / "out"), "model", load)
    writer.put(small_request("a"))
    assert writer.flush(60)
    writer.close()
    wait_for_end(run)
    assert [line["request"] for line in read_requests(tmp_path / "out")] == ["a"]


def test_requests_under_way_are_reported_once(tmp_path, caplog):
    journal = Journal.create(tmp_path)
    journal.set_requests(3, 5)
    journal.set_written(4)
    assert take_missing(tmp_path) == 0  # its server runs
    journal.end()
    journal.file.close()
    assert take_missing(tmp_path) == 4
    assert take_missing(tmp_path) == 0


def test_a_journal_that_another_server_sees_is_locked(tmp_path, monkeypatch):
    seen = []

    def late_is_locked(file):
        """Let another server look at all journals before this one is locked."""
        for path in tmp_path.glob("under-way/*"):
            seen.append(path.open("rb"))
            assert not is_locked(seen[-1])
        return is_locked(file)

    monkeypatch.setattr(journal_module, "is_locked", late_is_locked)
    journal = Journal.create(tmp_path)
    monkeypatch.undo()
    for file in seen:
        file.close()
    journal.set_requests(1, 0)
    assert take_missing(tmp_path) == 0
    journal.file.close()
    assert journal.path.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["under-way"]


def test_journals_of_complete_servers_are_deleted(tmp_path):
    journal = Journal.create(tmp_path)
    journal.set_requests(0, 5)
    journal.set_written(5)
    journal.end()
    journal.file.close()
    assert not journal.path.exists()


def test_folders_of_killed_servers_are_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("CLEARHEAD_RUN", "")
    monkeypatch.delenv("CLEARHEAD_RUN")
    monkeypatch.setattr(run_folder_module, "MEMORY", str(tmp_path))
    killed, alive = (tmp_path / f"clearhead-{host_id()}-{process}-abc" for process in (2**31 - 1, os.getpid()))
    killed.mkdir()
    alive.mkdir()
    folder = run_folder()
    assert sorted(tmp_path.iterdir()) == sorted([alive, folder])
    assert folder.stat().st_mode & 0o777 == 0o700
    assert run_folder() == folder  # as in the processes that inherit the variable
    run_folder_module._end(folder, os.getpid())
    assert not folder.exists()
