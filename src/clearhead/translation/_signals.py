"""Stop signals: SIGINT and SIGTERM end a run after the current step."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class TrainingStopped(KeyboardInterrupt):
    """Exception raised when a signal stopped training; `signal` is its number."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal = signal_number


@contextmanager
def catch_stop_signals() -> Iterator[list[int]]:
    """Yield a list that is empty until SIGINT or SIGTERM arrives. A second signal raises `TrainingStopped`."""
    received: list[int] = []

    def remember(signal_number: int, frame: object) -> None:
        if received:
            raise TrainingStopped(signal_number)
        received.append(signal_number)

    try:
        previous_handlers = {name: signal.signal(name, remember) for name in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # only the main thread can set signal handlers
        previous_handlers = {}
    try:
        yield received
    finally:
        for name, handler in previous_handlers.items():
            signal.signal(name, handler)
