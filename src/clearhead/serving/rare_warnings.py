"""`RareWarnings`: a log with at most one line per minute for each kind of message."""

from __future__ import annotations

import logging
import time
from collections import Counter

from clearhead._utils.text import printable

SECONDS_BETWEEN_WARNINGS = 60.0
logger = logging.getLogger("clearhead.serving")


class RareWarnings:
    """Log of warnings with at most one line per minute for each kind. Counts the others."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._unlogged: Counter[str] = Counter()

    def warn(self, action: str, error: Exception) -> None:
        """Log that an action has failed."""
        self.log(action, f"cannot {action}: {type(error).__name__}: {error}")

    def log(self, kind: str, message: str) -> None:
        """Log a message that may contain text of a client."""
        clock = time.monotonic()
        if kind in self._last and clock - self._last[kind] < SECONDS_BETWEEN_WARNINGS:
            self._unlogged[kind] += 1
            return
        self._last[kind] = clock
        count = self._unlogged.pop(kind, 0)
        repeated = f" ({count} more since the last message)" if count else ""
        logger.warning("%s%s", printable(message), repeated)
