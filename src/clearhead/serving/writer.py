"""`Writer`: a thread that writes what was observed of finished requests, without delaying the server."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from clearhead._utils.files import write_text
from clearhead._utils.text import json_text, printable
from clearhead.recording.names import model_name
from clearhead.serving.answers import end_of_answer
from clearhead.serving.disk_limit import DiskLimit
from clearhead.serving.finished import FinishedRequest
from clearhead.serving.head_means import phase_means
from clearhead.serving.json_record import json_record
from clearhead.serving.metrics import Metrics, Outcome
from clearhead.serving.output_files import REQUESTS, append_line, placing, recording_path, statistics_path
from clearhead.serving.rare_warnings import RareWarnings
from clearhead.serving.recorded import RequestTexts, to_recording
from clearhead.serving.results import SeenRequest
from clearhead.serving.settings import Settings
from clearhead.serving.transfer import PendingTransfer, fit

SECONDS_BETWEEN_SNAPSHOTS = 1.0
T = TypeVar("T")


class _Entry(NamedTuple):
    """One request in the queue, with the time at which it finished and its bytes."""

    transfer: PendingTransfer
    time: str
    size: int


class Writer:
    """Queue of finished requests, and the thread that writes them to an output folder.

    No error of writing reaches the server: it is counted in `metrics` and logged at most once per minute.

    Attributes:
        metrics: running sums over all requests of this process.

    Args:
        settings: output folder, memory budget of the queue, and which files to write.
        model: name or path of the model.
        tokenizer_loader: function that returns the tokenizer, or None without one. The thread calls it once.
        layers: observed layers.
        snapshot_path: file for the metrics. Default: none.
        on_written: function that the thread calls after each request.
    """

    def __init__(
        self,
        settings: Settings,
        model: str,
        tokenizer_loader: Callable[[], Any],
        layers: Sequence[int] = (),
        *,
        snapshot_path: Path | None = None,
        on_written: Callable[[], None] | None = None,
    ) -> None:
        self._settings, self._model = settings, model_name(model)
        self.metrics = Metrics.of(settings, model, layers)  # with the label of vLLM
        self._load_tokenizer: Callable[[], Any] | None = tokenizer_loader
        self._tokenizer: Any = None
        self._queue: deque[_Entry] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._closing = self._flushing = self._busy = self._ended = False
        self._warnings = RareWarnings()
        limit = settings.max_disk
        self._disk_limit = None if limit is None else DiskLimit(settings.output, limit)
        self._snapshot_path, self._on_written = snapshot_path, on_written
        self._snapshot_version, self._snapshot_time = 0, -SECONDS_BETWEEN_SNAPSHOTS
        self._thread = threading.Thread(target=self._run, name="clearhead-writer", daemon=True)
        self._thread.start()
        # atexit does not run in processes that multiprocessing started, such as the workers of a server
        self._at_exit = Finalize(None, self.close, exitpriority=0)

    @property
    def queued_bytes(self) -> int:
        """Memory of the requests that are not written yet."""
        return self._bytes

    def put(self, finished: FinishedRequest, time: str | None = None) -> None:
        """Queue a request. Beyond the memory budget its recording is dropped, and then the request itself.

        It neither waits nor raises. The tensors must not be changed afterwards.

        Args:
            finished: the request.
            time: time at which it finished. Default: now.
        """
        try:
            self._put(finished, time or time_now())
        except Exception as error:
            self.count("failed")
            self._warnings.warn("queue a request", error)

    def _put(self, finished: FinishedRequest, time: str) -> None:
        with self._changed:
            fitting, size = fit(finished, 0 if self._closing else self._settings.memory - self._bytes)
            if fitting is None or fitting.dropped is not None:
                self.count("dropped")
            if fitting is not None:
                self._queue.append(_Entry(PendingTransfer(fitting), time, size))
                self._bytes += size
                self._changed.notify_all()

    def count(self, outcome: Outcome) -> None:
        """Count a request."""
        self.metrics.count(outcome)

    def set_under_way(self, count: int) -> None:
        """Do nothing: the requests of an engine in a block of `observe` are not counted."""

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all queued requests and the metrics are written. Return False after `timeout` seconds."""
        with self._changed:
            self._flushing = True
            self._changed.notify_all()
            return self._changed.wait_for(self._is_idle, timeout)

    def close(self, timeout: float | None = 10.0) -> bool:
        """Write what is queued and end the thread. Later requests are dropped. Return False after a timeout."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._at_exit.cancel()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _is_idle(self) -> bool:
        return self._ended or not (self._queue or self._busy or self._flushing)

    # -- thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._step():
            pass

    def _step(self) -> bool:
        """Write one request or the metrics. Return False at the end."""
        with self._changed:
            if not (self._queue or self._closing or self._flushing):
                self._changed.wait(SECONDS_BETWEEN_SNAPSHOTS)
            entry = self._queue.popleft() if self._queue else None
            self._busy = True
            last = entry is None and (self._closing or self._flushing)
        if entry is not None:
            self._write(entry)
            if self._on_written is not None:
                self._on_written()
        self._write_snapshot(now=last)
        with self._changed:
            self._busy = False
            if entry is not None:
                self._bytes -= entry.size
            if last:
                self._flushing = False
            self._changed.notify_all()
            self._ended = last and self._closing and not self._queue
            return not self._ended

    def _write(self, entry: _Entry) -> None:
        """Write all files of a request. An error in one of them does not affect the others."""
        errors: list[Exception] = []

        def attempt(action: str, function: Callable[[], T]) -> T | None:
            try:
                return function()
            except Exception as error:
                errors.append(error)
                self._warnings.warn(action, error)
                return None

        read = attempt("read tensors", entry.transfer.to_cpu)
        if read is not None:
            finished = attempt("find the end of the answer", lambda: self._with_end(read)) or read
            means = attempt("compute means", lambda: phase_means(finished))
            texts = self._texts(finished) if finished.recording or self._settings.arrays else None
            recording, dropped = None, None
            if finished.recording and texts:
                recording = attempt("write a recording", lambda: self._write_recording(finished, texts))
                if not recording:  # without the folder, because these files are shared
                    reason = str(errors[-1]).replace(f"{self._settings.output}{os.sep}", "")
                    dropped = f"not written: {printable(reason)}"
            if self._settings.arrays and texts:
                attempt("write statistics", lambda: self._write_statistics(finished, texts))
            if means is not None:
                attempt("add up metrics", lambda: self.metrics.add(finished, means))
                facts = {"model": self._model, "time": entry.time, "recording": recording, "dropped": dropped}
                attempt("write a JSON line", lambda: self._write_line(json_record(finished, means, **facts)))
        if errors:
            self.metrics.count("failed")

    def _with_end(self, finished: FinishedRequest) -> FinishedRequest:
        """Return a request with the end of its answer."""
        rules = finished.stop_rules
        decode = functools.partial(self._decode, skip_special_tokens=rules.skip_special_tokens)
        tokens, reason = end_of_answer(finished.written, finished.rows - finished.first_answer_row, rules, decode)
        return replace(finished, answer_tokens=tokens, finish_reason=reason)

    def _write_recording(self, finished: FinishedRequest, texts: RequestTexts) -> str:
        path = recording_path(self._settings.output, str(finished.id))
        with placing(path) as temporary:
            to_recording(finished, self._model, texts).save(temporary)
        self._limit(path)
        self.metrics.count("recorded")
        return path.name

    def _write_statistics(self, finished: FinishedRequest, texts: RequestTexts) -> None:
        path = statistics_path(self._settings.output, str(finished.id))
        with placing(path) as temporary:
            SeenRequest.of(finished, self._model, texts.tokens).save(temporary)
        self._limit(path)

    def _write_line(self, record: dict[str, Any]) -> None:
        append_line(self._settings.output / REQUESTS, record)
        self.metrics.count("observed")
        if self._disk_limit is not None:
            self._disk_limit.rotate_lines()

    def _limit(self, path: Path) -> None:
        """Delete old files after a new one was written."""
        if self._disk_limit is not None:
            self._disk_limit.add(path)

    def _loaded_tokenizer(self) -> Any:
        if self._load_tokenizer is not None:
            load, self._load_tokenizer = self._load_tokenizer, None
            self._tokenizer = load()
        return self._tokenizer

    def _decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of tokens as the server sees it; nothing without a tokenizer."""
        tokenizer = self._loaded_tokenizer()
        if tokenizer is None:
            return ""
        return tokenizer.decode(ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)

    def _texts(self, finished: FinishedRequest) -> RequestTexts:
        """Return the texts of a request; token ids if the tokenizer fails."""
        try:
            return RequestTexts.decode(finished, self._loaded_tokenizer())
        except Exception as error:
            self._warnings.warn("decode tokens", error)
            return RequestTexts.decode(finished, None)

    def _write_snapshot(self, *, now: bool) -> None:
        version, clock = self.metrics.version, time.monotonic()
        if self._snapshot_path is None or version == self._snapshot_version:
            return
        if now or clock - self._snapshot_time >= SECONDS_BETWEEN_SNAPSHOTS:
            self._snapshot_version, self._snapshot_time = version, clock
            try:
                write_text(self._snapshot_path, json_text(self.metrics.snapshot()))
            except Exception as error:
                self._warnings.warn("write metrics", error)


def time_now() -> str:
    """Return the time in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
