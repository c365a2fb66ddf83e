"""Work for one page, in small steps outside of its event loop; a newer request of a kind replaces the older one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any

from bokeh.document import Document
from bokeh.document.locking import without_document_lock

Update = Callable[[], None]
Steps = Iterator[Update | None]  # each step computes something, and gives what is to be done with the page, if anything
_DONE: Any = object()


class Jobs:
    """Runs generators step by step: `next` in the executor, what it gives with the document's lock held."""

    def __init__(self, document: Document, executor: Executor, failed: Callable[[Exception], None]) -> None:
        self._document, self._executor, self._failed = document, executor, failed
        self._numbers: dict[str, int] = {}
        self._running: set[str] = set()
        self._closed = False

    def start(self, kind: str, steps: Steps, *, behind: bool = False) -> None:
        """Begin, in place of what is running of that kind. `behind`: give way to everything that is not."""
        self.cancel(kind)
        number = self._numbers[kind]

        async def run() -> None:
            if not behind:
                self._running.add(kind)
            try:
                while self._is_current(kind, number):
                    if behind and self._running:
                        await asyncio.sleep(0.01)
                        continue
                    loop = asyncio.get_running_loop()
                    update = await loop.run_in_executor(self._executor, next, steps, _DONE)
                    if update is _DONE:
                        return
                    if update is not None and self._is_current(kind, number):
                        self._document.add_next_tick_callback(lambda update=update: self._apply(update, kind, number))
            except Exception as error:
                if not self._closed:
                    self._document.add_next_tick_callback(lambda error=error: self._failed(error))
            finally:
                if self._is_current(kind, number):
                    self._running.discard(kind)

        self._document.add_next_tick_callback(without_document_lock(run))  # pyright: ignore[reportArgumentType]

    def cancel(self, kind: str) -> None:
        """Whatever is running of that kind does no further step."""
        self._numbers[kind] = self._numbers.get(kind, 0) + 1
        self._running.discard(kind)

    def cancel_all(self) -> None:
        for kind in self._numbers:
            self.cancel(kind)

    def close(self) -> None:
        self._closed = True

    def _apply(self, update: Update, kind: str, number: int) -> None:
        """What a step gave, unless something newer was asked for while it waited for its turn."""
        if self._is_current(kind, number):
            try:
                update()
            except Exception as error:
                self._failed(error)

    def _is_current(self, kind: str, number: int) -> bool:
        return not self._closed and self._numbers[kind] == number
