"""The pinned head, drawn next to the shown head: its heatmap in the same window, and the difference of both."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace

from clearhead._utils.text import short_token
from clearhead.recording import Address, Recording
from clearhead.recording.row_labels import LABEL_COLUMNS, row_label
from clearhead.viewer._heatmap import Heatmap, HeatmapWindow, ProgressiveHeatmap, is_exact
from clearhead.viewer._payloads import Payload
from clearhead.viewer._recording_cache import RecordingCache
from clearhead.viewer._statistics_table import head_id
from clearhead.viewer.server._page_state import Request, parse_address
from clearhead.viewer.server._panels.panel import Panel, Selection
from clearhead.viewer.server._tasks import Steps, Update

MAX_COMPARED_BINS = 256  # bins per axis
MAX_COMPARED_TOKENS = 40  # longest side whose tokens are sent
SAME_HEAD = "same"  # pins the head with the name of the shown head, in another text or recording


class ComparePanel(Panel):
    """Pinned head of this text, of another text, or of the recording that the viewer compares with."""

    _request: Request | None = None
    _cache: RecordingCache | None = None  # of the pinned head, once it is recorded

    @property
    def handlers(self) -> dict[str, Callable[[Request], None]]:
        return {"pin": self._pin, "unpin": lambda request: self._unpin()}

    def head_changed(self) -> None:
        self._refresh()

    def window_changed(self) -> None:
        self._refresh()

    def settings_changed(self) -> None:
        self._refresh()

    def cell_changed(self) -> None:
        if self._cache is not None and self._request is not None:
            self.tasks.start("compared cell", self._cell_steps(self.shown, self._cache, self._request))

    def _pin(self, request: Request) -> None:
        self._request, self._cache = {**request, "head": str(request["head"])}, None
        self._refresh()

    def _unpin(self) -> None:
        self._request = self._cache = None
        for kind in ("compare", "compared cell"):
            self.tasks.cancel(kind)
        self.state.update(compare=None, compared_cell=None)

    def _refresh(self) -> None:
        """Draw the pinned head again. Before the first head is shown, its request waits."""
        if self._request is not None and self.state.head is not None:
            self.tasks.start("compare", self._steps(self.shown, self._request), background=True)

    def _steps(self, shown: Selection, request: Request) -> Steps:
        cache = self._cache or self._recorded(request)
        yield lambda: self._keep(cache)
        pinned = _pinned(shown, cache, request)
        reason = _reason(shown, pinned)
        # exact windows and overviews have other bins, and the largest exact window depends on the device
        exact = all(_is_exact(side) for side in ((pinned,) if reason else (shown, pinned)))
        heatmap = yield from _heatmap_steps(pinned, exact)
        difference = None
        if not reason:
            base = yield from _heatmap_steps(shown, exact)
            difference = base.values - heatmap.values
        payload = {
            **_payload(pinned, heatmap),
            "shown": head_id(shown.address),
            "difference": difference,
            "reason": reason,
        }
        yield lambda: self.state.update(compare=payload)

    def _recorded(self, request: Request) -> RecordingCache:
        """Return the recording of the pinned head. Runs the model if needed."""
        if not request.get("recording"):
            return self.texts.recorded(self.texts.chosen(request)).cache
        if self.texts.compared is None:
            raise ValueError("this viewer has no recording to compare with; expected --compare")
        return self.texts.compared

    def _keep(self, cache: RecordingCache) -> None:
        is_new = self._cache is None
        self._cache = cache
        if is_new and self.shown.cursor is not None:
            self.cell_changed()

    def _cell_steps(self, shown: Selection, cache: RecordingCache, request: Request) -> Steps:
        assert shown.cursor is not None
        query, key = shown.cursor
        pinned = _pinned(shown, cache, request)
        weights = [
            float(side.cache.recording.weights(side.address)[0, 0, query, key])
            for side in (shown, pinned)
            if pinned.shape == shown.shape
        ]
        payload = {"shown": head_id(shown.address), "query": query, "key": key, "weights": weights}
        yield lambda: self.state.update(compared_cell=payload)


def _pinned(shown: Selection, cache: RecordingCache, request: Request) -> Selection:
    """Return the selection of the pinned head: the shown window if the shapes are equal, else the whole matrix."""
    address = _address(cache.recording, request["head"], shown.address)
    pinned = replace(shown, cache=cache, address=address)
    if pinned.shape == shown.shape:
        return pinned
    q_len, kv_len = pinned.shape
    return replace(pinned, window=HeatmapWindow(0, q_len, 0, kv_len))


def _address(recording: Recording, name: str, shown: Address) -> Address:
    return parse_address(recording, head_id(shown) if name == SAME_HEAD else name)


def _reason(shown: Selection, pinned: Selection) -> str:
    """Return why the difference cannot be drawn, or "" if it can."""
    if pinned.shape != shown.shape:
        shapes = [f"{q_len:,} × {kv_len:,}" for q_len, kv_len in (shown.shape, pinned.shape)]
        return f"The shown matrix has {shapes[0]} weights and the pinned one {shapes[1]}, so they have no difference."
    if shown.weighted:
        return "Value-weighted maps of two heads have different units, so they have no difference."
    return ""


def _is_exact(selection: Selection) -> bool:
    """Return whether the window of a selection is small enough to be computed on request."""
    return is_exact(selection.cache.recording.weights(selection.address), selection.window)


def _heatmap_steps(selection: Selection, exact: bool) -> Generator[Update | None, None, Heatmap]:
    """Return the heatmap of a selection's window: exact, or cropped from the overview of the whole matrix."""
    cache, address, reduce = selection.cache, selection.address, selection.reduce
    if exact:
        weights = cache.weights(address, **selection.heatmap_options)
        detail = ProgressiveHeatmap(weights, selection.window, MAX_COMPARED_BINS, (reduce,))
        while not detail.finished:
            detail.advance()
            yield None
        return detail.heatmap(reduce)
    overview = cache.overview(address, **selection.heatmap_options)
    while not overview.finished:
        overview.advance()
        yield None
    return overview.heatmaps.heatmap(reduce).crop(selection.window).downsampled(reduce, MAX_COMPARED_BINS)


def _payload(pinned: Selection, heatmap: Heatmap) -> Payload:
    stack, layer, head = pinned.address
    row, row_end, key, key_end = pinned.window
    return {
        "stack": stack,
        "layer": layer,
        "head": head,
        "window": list(pinned.window),
        "row": heatmap.window.row,
        "key": heatmap.window.key,
        "bins": list(heatmap.bin_size),
        "shape": list(heatmap.values.shape),
        "values": heatmap.values,
        "queries": _labels(row, row_end, lambda query: row_label(pinned.stack, query)),
        "keys": _labels(key, key_end, lambda index: short_token(pinned.stack.keys.texts[index], LABEL_COLUMNS)),
    }


def _labels(start: int, end: int, label: Callable[[int], str]) -> list[str]:
    """Return the labels of a side; empty if there are too many to draw."""
    return [label(index) for index in range(start, end)] if end - start <= MAX_COMPARED_TOKENS else []
