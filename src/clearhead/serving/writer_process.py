"""`WriterProcess`: a process that writes finished requests, also when the server or its worker is killed.

The engine stores a finished request in a file in memory and sends its handle through a socket. The kernel keeps both
when the engine ends, so whatever was sent is written.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.util import Finalize
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch

from clearhead._utils.files import write_text
from clearhead._utils.text import json_text
from clearhead.serving.finished import FinishedRequest
from clearhead.serving.journal import Journal, take_missing
from clearhead.serving.metrics import Metrics, Outcome
from clearhead.serving.rare_warnings import RareWarnings
from clearhead.serving.run_folder import COUNTERS, LOCK, Counters, is_locked, run_folder
from clearhead.serving.settings import MAX_BYTES, Settings
from clearhead.serving.transfer import PendingTransfer, fit
from clearhead.serving.writer import Writer, time_now

# vLLM kills the descendants of its processes; a process whose parent has ended is not one of them
START = """
import json, os, sys
if os.fork():
    os._exit(0)
sys.path = json.loads(sys.argv.pop(1))
from clearhead.serving.writer_process import run
run()
"""
SECONDS_BETWEEN_ATTEMPTS = 0.005
logger = logging.getLogger("clearhead.serving")


class _Setup(NamedTuple):
    """Arguments of the writer in its process."""

    settings: Settings
    model: str
    tokenizer_loader: Callable[[], Any]
    layers: tuple[int, ...]
    snapshot_path: Path | None
    journal_path: Path


class _Entry(NamedTuple):
    """One finished request, with the time at which it finished and its bytes."""

    transfer: PendingTransfer
    time: str
    size: int

    def save(self) -> IO[bytes]:
        """Return a file in memory with the request."""
        file = _file_in_memory()
        torch.save((self.transfer.to_cpu(), self.time, self.size), file)
        return file


class WriterProcess:
    """Sender of finished requests to a process that writes them to an output folder.

    The arguments are those of `Writer`; the loader of the tokenizer can be pickled. No error reaches the server.
    """

    def __init__(
        self, settings: Settings, model: str, tokenizer_loader: Callable[[], Any], layers: Sequence[int] = ()
    ) -> None:
        missing = take_missing(settings.output)
        if missing:
            logger.warning(
                "%d requests were under way when an earlier server ended; they have no line in %s",
                missing,
                settings.output,
            )
        self._settings = settings
        self._journal = Journal.create(settings.output)
        path = run_folder() / f"{os.getpid()}-{secrets.token_hex(4)}"
        snapshot_path = path.with_suffix(".json") if settings.metrics else None
        if snapshot_path is not None:
            write_text(snapshot_path, json_text(Metrics.of(settings, model, layers).snapshot()))
        self._queue: deque[_Entry] = deque()
        self._changed = threading.Condition()
        self._accepted_bytes = 0
        self._in_engine = 0
        self._closing = False
        self._warnings = RareWarnings()
        self._socket, self._counters = self._start(path)
        setup = _Setup(settings, model, tokenizer_loader, tuple(layers), snapshot_path, self._journal.path)
        self._send(_pickled(setup))
        self._thread = threading.Thread(target=self._run, name="clearhead-sender", daemon=True)
        self._thread.start()
        self._at_exit = Finalize(None, self.close, exitpriority=0)

    def _start(self, path: Path) -> tuple[socket.socket, Counters]:
        """Start the process, and return the socket and the counters that connect it."""
        ours, theirs = socket.socketpair()
        paths = json.dumps([path for path in sys.path if isinstance(path, str)])  # Python ignores others
        with theirs, path.with_suffix(COUNTERS).open("w+b") as file, path.with_suffix(LOCK).open("wb") as lock:
            file.truncate(Counters.SIZE)
            is_locked(lock)  # until the process ends
            handles = [each.fileno() for each in (theirs, file, self._journal.file, lock)]
            subprocess.run(
                [sys.executable, "-P", "-c", START, paths, *map(str, handles)],  # -P: not from the current folder
                pass_fds=handles,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal reaches the processes of a session
                env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
                check=True,
            )
            ours.setblocking(False)
            return ours, Counters(file)

    # -- engine ----------------------------------------------------------------------------------------------------

    def count(self, outcome: Outcome) -> None:
        """Count a request."""
        self._counters[outcome] += 1

    def set_under_way(self, count: int) -> None:
        """Note how many requests the engine runs, for the next server if this one is killed."""
        if count != self._in_engine:
            self._in_engine = count
            self._journal.set_requests(count, self._counters["sent"])

    def put(self, finished: FinishedRequest) -> None:
        """Send a request. Beyond the memory budget its recording is dropped, and then the request itself.

        It neither waits nor raises: what a GPU still computes, or the socket does not take, is sent by a thread. The
        tensors must not be changed afterwards.
        """
        try:
            self._put(finished)
        except Exception as error:
            self.count("failed")
            self._warnings.warn("send a request", error)

    def _put(self, finished: FinishedRequest) -> None:
        fitting, size = (None, 0) if self._closing else fit(finished, self._settings.memory - self._unwritten_bytes)
        if fitting is None:
            self.count("dropped")
            return
        entry = _Entry(PendingTransfer(fitting), time_now(), size)
        with self._changed:
            self._accept(entry, 1)
            if not self._queue and entry.transfer.is_on_cpu:
                try:
                    with entry.save() as file:
                        if self._try_send(file):
                            return
                except Exception:
                    self._accept(entry, -1)
                    raise
            self._queue.append(entry)
            self._changed.notify_all()

    def _accept(self, entry: _Entry, count: int) -> None:
        """Count an accepted request, or by -1 one that could not be sent."""
        self._accepted_bytes += count * entry.size
        self._counters["sent"] += count
        self._journal.set_requests(self._in_engine, self._counters["sent"])

    @property
    def _unwritten_bytes(self) -> int:
        return self._accepted_bytes - self._counters["handled_bytes"]

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all requests are written. Return False after `timeout` seconds, or if the process has ended."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._counters["handled"] < self._counters["sent"]:
            if self._has_ended() or (deadline is not None and time.monotonic() > deadline):
                return False
            time.sleep(SECONDS_BETWEEN_ATTEMPTS)
        return True

    def close(self) -> None:
        """Send what is queued. The process writes it and ends; `run_folder` describes who waits for that."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._at_exit.cancel()
        self._thread.join()
        self._journal.file.close()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)  # also for a child of this process that has inherited the socket
        self._socket.close()

    def _has_ended(self) -> bool:
        try:
            return not self._socket.recv(1)
        except BlockingIOError:
            return False
        except OSError:
            return True

    # -- thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    return
                entry = self._queue[0]
            error = None
            try:
                self._send(entry.save())
            except Exception as caught:
                error = caught
                self.count("failed")
                self._warnings.warn("send a request", error)
            with self._changed:
                self._queue.popleft()
                if error is not None:
                    self._accept(entry, -1)

    def _send(self, file: IO[bytes]) -> None:
        with file:
            while not self._try_send(file):
                time.sleep(SECONDS_BETWEEN_ATTEMPTS)

    def _try_send(self, file: IO[bytes]) -> bool:
        """Send the handle of a file. Return False if the socket takes no more now."""
        file.flush()
        try:
            socket.send_fds(self._socket, [b"\0"], [file.fileno()])
        except BlockingIOError:
            return False
        return True


def run() -> None:
    """Write what a `WriterProcess` sends until it ends. The handles are arguments of the command."""
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # the end of the other process is the signal
        signal.signal(name, signal.SIG_IGN)
    logging.basicConfig(format="%(levelname)s %(asctime)s clearhead: %(message)s")
    handle, counters_handle, journal_handle, _ = map(int, sys.argv[1:])
    with socket.socket(fileno=handle) as connection, os.fdopen(counters_handle, "r+b") as file:
        counters = Counters(file)
        first = _received(connection)
        if first is None:
            return
        with first:
            setup: _Setup = pickle.load(first)
        journal = Journal(setup.journal_path, os.fdopen(journal_handle, "r+b", buffering=0))
        sizes: deque[int] = deque()

        def count() -> None:
            counters["handled_bytes"] += sizes.popleft()
            counters["handled"] += 1
            journal.set_written(counters["handled"])

        settings = replace(setup.settings, memory=MAX_BYTES)  # the sender has checked it
        writer = Writer(
            settings,
            setup.model,
            setup.tokenizer_loader,
            setup.layers,
            snapshot_path=setup.snapshot_path,
            on_written=count,
        )
        while (received := _received(connection)) is not None:
            with received:
                finished, time_of_end, size = torch.load(received, weights_only=False)  # of the parent process
            sizes.append(size)
            writer.put(finished, time_of_end)
        writer.close(None)
        journal.end()


def _received(connection: socket.socket) -> IO[bytes] | None:
    """Return the next file that was sent; None when the other process has ended."""
    with suppress(ConnectionError):
        message, handles, _, _ = socket.recv_fds(connection, 1, 1)
        if message:
            file = os.fdopen(handles[0], "r+b")
            file.seek(0)
            return file
    return None


def _pickled(value: object) -> IO[bytes]:
    file = _file_in_memory()
    pickle.dump(value, file)
    return file


def _file_in_memory() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("clearhead"), "w+b")
    return tempfile.TemporaryFile()
