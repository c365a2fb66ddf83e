"""Attention over a picture or along a sound."""

from __future__ import annotations

from collections.abc import Callable

from clearhead.viewer._media_payload import grid_weights, media_payload
from clearhead.viewer.server._page_state import Request
from clearhead.viewer.server._panels.panel import Panel, Selection
from clearhead.viewer.server._tasks import Steps


class MediaPanel(Panel):
    """Media of the recording, and weights over a grid that the page requests for a token."""

    @property
    def handlers(self) -> dict[str, Callable[[Request], None]]:
        return {"grid_weights": self._show}

    def text_changed(self) -> None:
        self.tasks.start("media", self._media_steps(self.shown))

    def _media_steps(self, shown: Selection) -> Steps:
        payload = media_payload(shown.cache.recording)  # encodes pictures, so it does not run in the event loop
        yield lambda: self.state.update(media=payload)

    def _show(self, request: Request) -> None:
        self.tasks.start("grid weights", self._steps(self.shown, int(request["index"])))

    def _steps(self, shown: Selection, index: int) -> Steps:
        payload = grid_weights(shown.cache.recording, shown.address, index)
        yield lambda: self.state.update(grid_weights=payload)
