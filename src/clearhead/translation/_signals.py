"""Stopping of a run by a signal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class TrainingStopped(KeyboardInterrupt):
    """Training ended by a signal, whose number is `signal`."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal = signal_number


@contextmanager
def catch_stop_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in a list, which is empty until one arrives. A second signal raises at once."""
    received: list[int] = []

    def remember(signal_number: int, frame: object) -> None:
        if received:
            raise TrainingStopped(signal_number)
        received.append(signal_number)

    try:
        previous_handlers = {name: signal.signal(name, remember) for name in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread, where signals do not arrive
        previous_handlers = {}
    try:
        yield received
    finally:
        for name, handler in previous_handlers.items():
            signal.signal(name, handler)
