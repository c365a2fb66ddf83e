"""The words: lines between tokens for all heads of a layer, the shaded row of the window, and the next tokens."""

from __future__ import annotations

from clearhead.recording import Address
from clearhead.viewer._recording_cache import RecordingCache
from clearhead.viewer._words_payload import (
    WordWindow,
    next_tokens_payload,
    row_payload,
    word_window,
    words_payload,
)
from clearhead.viewer.server._panels.panel import Panel, Selection
from clearhead.viewer.server._tasks import Steps


class WordsPanel(Panel):
    """Tokens around the cursor and the weights between them. They are sent again only if layer or tokens change."""

    _sent: tuple[RecordingCache, Address, WordWindow] | None = None

    def text_changed(self) -> None:
        self._sent = None

    def head_changed(self) -> None:
        self._start()

    def cell_changed(self) -> None:
        self._start()

    def window_changed(self) -> None:
        self._start()

    def settings_changed(self) -> None:
        self._start()

    def _start(self) -> None:
        self.tasks.start("words", self._steps(self.shown))

    def _steps(self, shown: Selection) -> Steps:
        window = word_window(shown.cache, shown.address, shown.window, shown.cursor, hide=shown.hide)
        layer = (shown.cache, (*shown.address[:2], 0), window)
        if layer == self._sent:
            return
        payload = words_payload(shown.cache, shown.address, window)

        def send() -> None:
            self._sent = layer
            self.state.words = payload

        yield send


class RowPanel(Panel):
    """Weights of the selected query for the keys of the window."""

    def cell_changed(self) -> None:
        self._start()

    def window_changed(self) -> None:
        self._start()

    def _start(self) -> None:
        if self.shown.cursor is not None:
            self.tasks.start("row", self._steps(self.shown))

    def _steps(self, shown: Selection) -> Steps:
        assert shown.cursor is not None
        row = row_payload(shown.cache, shown.address, shown.cursor[0], shown.window)
        yield lambda: self.state.update(row=row)


class NextTokensPanel(Panel):
    """Most probable next tokens after the selected query."""

    def cell_changed(self) -> None:
        self.tasks.start("next tokens", self._steps(self.shown))

    def _steps(self, shown: Selection) -> Steps:
        assert shown.cursor is not None
        payload = next_tokens_payload(shown.cache, shown.address[0], shown.cursor[0])
        yield lambda: self.state.update(next_tokens=payload)
