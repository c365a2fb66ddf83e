"""Thumbnails of all heads, sent layer by layer."""

from __future__ import annotations

from clearhead.viewer import _payloads
from clearhead.viewer.server._panels.panel import Panel, Selection
from clearhead.viewer.server._tasks import Steps


class ThumbnailsPanel(Panel):
    """Thumbnails, statistics and labels of all heads."""

    _sent_hide = False

    def text_changed(self) -> None:
        self._sent_hide = self.shown.hide
        self.tasks.start("thumbnails", self._steps(self.shown), background=True)

    def settings_changed(self) -> None:
        if self.state.model is not None and self.shown.hide != self._sent_hide:
            self.text_changed()

    def _steps(self, shown: Selection) -> Steps:
        """Send one layer per step, that of the selected head before the others."""
        recording = shown.cache.recording
        layers = [(name, layer) for name, stack in recording.stacks.items() for layer in range(len(stack.layers))]
        while layers:
            selected = self.shown.address[:2]
            name, layer = layers.pop(layers.index(selected) if selected in layers else 0)
            payload = _payloads.layer_payload(shown.cache, name, layer, hide=shown.hide)
            yield lambda payload=payload: self.state.update(thumbnails=payload)
