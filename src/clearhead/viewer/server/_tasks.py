"""Tasks of one page, run in small steps outside the event loop. A new task replaces the last one of its kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any

from bokeh.document import Document
from bokeh.document.locking import without_document_lock

Update = Callable[[], None]
Steps = Iterator[Update | None]  # each step computes something and yields an update of the page, or None
_DONE: Any = object()


class PageTasks:
    """Runner of generators: each step runs in the executor, each yielded update with the document's lock held."""

    def __init__(self, document: Document, executor: Executor, on_error: Callable[[Exception], None]) -> None:
        self._document, self._executor, self._on_error = document, executor, on_error
        self._generations: dict[str, int] = {}  # by kind: number of tasks started or canceled
        self._running: dict[str, int] = {}  # rank of each running task; a task waits for all tasks of lower ranks
        self._closed = False

    def start(self, kind: str, steps: Steps, *, background: bool = False, last: bool = False) -> None:
        """Start a task and cancel the previous task of its kind.

        A background task waits for all foreground tasks. A task with `last` waits for background tasks too.
        """
        self.cancel(kind)
        generation = self._generations[kind]
        rank = 2 if last else int(background)

        async def run() -> None:
            if self._is_current(kind, generation):  # not canceled before this callback
                self._running[kind] = rank
            try:
                while self._is_current(kind, generation):
                    if min(self._running.values(), default=rank) < rank:
                        await asyncio.sleep(0.01)
                        continue
                    loop = asyncio.get_running_loop()
                    update = await loop.run_in_executor(self._executor, next, steps, _DONE)
                    if update is _DONE:
                        return
                    if update is not None and self._is_current(kind, generation):
                        self._document.add_next_tick_callback(
                            lambda update=update: self._apply(update, kind, generation)
                        )
            except Exception as error:
                if not self._closed:
                    self._document.add_next_tick_callback(lambda error=error: self._on_error(error))
            finally:
                if self._is_current(kind, generation):
                    self._running.pop(kind, None)

        self._document.add_next_tick_callback(without_document_lock(run))  # pyright: ignore[reportArgumentType]

    def cancel(self, kind: str) -> None:
        """Stop the running task of that kind after its current step."""
        self._generations[kind] = self._generations.get(kind, 0) + 1
        self._running.pop(kind, None)

    def cancel_all(self) -> None:
        for kind in self._generations:
            self.cancel(kind)

    def close(self) -> None:
        self._closed = True

    def _apply(self, update: Update, kind: str, generation: int) -> None:
        """Apply a step's update, unless its task has been replaced or canceled."""
        if self._is_current(kind, generation):
            try:
                update()
            except Exception as error:
                self._on_error(error)

    def _is_current(self, kind: str, generation: int) -> bool:
        return not self._closed and self._generations[kind] == generation
