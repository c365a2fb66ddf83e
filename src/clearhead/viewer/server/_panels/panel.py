"""Base class of the parts of a page, and the selection that they share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from clearhead.ops.statistics import Reduce
from clearhead.recording import Address, Stack
from clearhead.viewer._heatmap import HeatmapWindow
from clearhead.viewer._recording_cache import RecordingCache
from clearhead.viewer.server._page_state import PageState, Request
from clearhead.viewer.server._tasks import PageTasks
from clearhead.viewer.server._texts import Texts


@dataclass(frozen=True)
class Selection:
    """Text, head, window and cell that a page shows. Immutable, so a running task is not affected by later changes."""

    cache: RecordingCache
    address: Address
    window: HeatmapWindow
    cursor: tuple[int, int] | None = None  # query and key
    reduce: Reduce = "max"
    hide: bool = False
    weighted: bool = False  # by the norms of the values, where they are known

    @property
    def stack(self) -> Stack:
        return self.cache.recording[self.address[0]]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.stack.queries), len(self.stack.keys)

    @property
    def heatmap_options(self) -> dict[str, bool]:
        """Arguments of `weights`, `overview` and `thumbnails` of `RecordingCache`."""
        weighted = self.weighted and self.cache.can_weight_values(self.address[0])
        return {"hide": self.hide, "value_weighted": weighted}


class Panel:
    """Part of a page. Subclasses override the methods of the changes that they follow.

    Long work runs in `self.tasks`, in small steps. Its results are written to properties of `self.state`.
    """

    def __init__(self, state: PageState, tasks: PageTasks, selection: Callable[[], Selection], texts: Texts) -> None:
        self.state, self.tasks, self.texts = state, tasks, texts
        self._selection = selection

    @property
    def shown(self) -> Selection:
        """Current selection of the page."""
        return self._selection()

    @property
    def handlers(self) -> dict[str, Callable[[Request], None]]:
        """Requests that this panel answers, by kind."""
        return {}

    def text_changed(self) -> None:
        """Follow a new text. No head is selected yet."""

    def head_changed(self) -> None:
        """Follow another head of the text."""

    def cell_changed(self) -> None:
        """Follow another cell. `self.shown.cursor` is not None."""

    def window_changed(self) -> None:
        """Follow another window of the matrix."""

    def settings_changed(self) -> None:
        """Follow a change of `reduce`, `hide` or `weighted`."""
