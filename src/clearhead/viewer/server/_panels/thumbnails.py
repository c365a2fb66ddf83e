"""Thumbnails of all heads, sent layer by layer."""

from __future__ import annotations

from clearhead.viewer import _payloads
from clearhead.viewer._recording_cache import RecordingCache
from clearhead.viewer.server._panels.panel import Panel
from clearhead.viewer.server._tasks import Steps


class ThumbnailsPanel(Panel):
    """Thumbnails, entropy and labels of all heads."""

    def text_changed(self) -> None:
        self.tasks.start("thumbnails", self._steps(self.shown.cache), background=True)

    def _steps(self, cache: RecordingCache) -> Steps:
        for name, stack in cache.recording.stacks.items():
            for layer in range(len(stack.layers)):
                payload = _payloads.layer_payload(cache, name, layer)
                yield lambda payload=payload: self.state.update(thumbnails=payload)
