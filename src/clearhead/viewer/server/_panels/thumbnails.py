"""Thumbnails of all heads, sent layer by layer."""

from __future__ import annotations

from clearhead.viewer import _payloads
from clearhead.viewer.server._panels.panel import Panel, Selection
from clearhead.viewer.server._tasks import Steps


class ThumbnailsPanel(Panel):
    """Thumbnails, statistics and labels of all heads."""

    _sent = (False, False)  # hide and weighted

    def text_changed(self) -> None:
        self._sent = (self.shown.hide, self.shown.weighted)
        # last, because other tasks have many short steps, and would wait for the thumbnails of a layer at each step
        self.tasks.start("thumbnails", self._steps(self.shown), last=True)

    def settings_changed(self) -> None:
        if self.state.model is not None and (self.shown.hide, self.shown.weighted) != self._sent:
            self.text_changed()

    def _steps(self, shown: Selection) -> Steps:
        """Send one layer per step, that of the selected head before the others."""
        recording = shown.cache.recording
        layers = [(name, layer) for name, stack in recording.stacks.items() for layer in range(len(stack.layers))]
        while layers:
            selected = self.shown.address[:2]
            name, layer = layers.pop(layers.index(selected) if selected in layers else 0)
            payload = _payloads.layer_payload(shown.cache, name, layer, hide=shown.hide, value_weighted=shown.weighted)
            yield lambda payload=payload: self.state.update(thumbnails=payload)
