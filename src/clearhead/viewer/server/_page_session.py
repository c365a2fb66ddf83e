"""Server-side session of one page: handles the page's requests and draws its charts."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from bokeh.document import Document
from bokeh.events import RangesUpdate

from clearhead._utils.color_scales import weight_floor
from clearhead._utils.text import short_token
from clearhead.ops.statistics import Reduce
from clearhead.recording import Address, Stack
from clearhead.viewer import _payloads
from clearhead.viewer._charts import PALETTES, HeadChart
from clearhead.viewer._heatmap import (
    MAX_PAGE_BINS,
    BinSize,
    Heatmap,
    HeatmapWindow,
    ProgressiveHeatmap,
    band_cells,
    is_exact,
)
from clearhead.viewer._recording_cache import RecordingCache
from clearhead.viewer._templates import TEMPLATES
from clearhead.viewer.server._page_state import PageState, Request, parse_address, parse_cell, parse_window
from clearhead.viewer.server._tasks import PageTasks, Steps
from clearhead.viewer.server._texts import MAX_TYPED_LETTERS, Recorded, Texts, check_typed


class HeadDrawing(NamedTuple):
    """Head and drawing settings. Immutable, so a running task is not affected by later changes."""

    cache: RecordingCache
    address: Address
    reduce: Reduce
    hide: bool


class PageSession:
    """Session of one page. Results are cached per text in a `RecordingCache`, which all pages share."""

    def __init__(self, document: Document, texts: Texts) -> None:
        self._texts = texts
        self._text = texts.choices[0]
        self._cache = texts.first.cache
        self._address: Address = next(iter(self._cache.recording.heads()))
        self._cursor: tuple[int, int] | None = None  # the selected cell of this text
        self._reduce: Reduce = "max"
        self._hide = False
        self._chart, self._state = HeadChart(), PageState(name="page_state")
        self._tasks = PageTasks(document, texts.worker, self._show_error)
        self._state.on_change("ask", lambda attribute, old, new: self._answer(new))
        self._chart.map.on_event(RangesUpdate, self._on_ranges_update)
        for root in (self._chart.map, self._chart.entropy, self._chart.received, self._state):
            document.add_root(root)
        name = self._cache.recording.model
        document.title = f"clearhead: {name}"
        document.template = TEMPLATES.get_template("viewer.html")
        document.template_variables.update(palettes=PALETTES, model=name, live=True)
        document.config.notify_connection_status = False  # the page shows its own message

    def close(self) -> None:
        """Cancel all tasks of a page that was closed."""
        self._tasks.close()

    # -- requests ------------------------------------------------------------------------------------------------

    def _answer(self, request: Any) -> None:
        handlers = {
            "go": self._go,
            "window": self._zoom,
            "cursor": self._point,
            "settings": self._apply_settings,
            "theme": self._apply_theme,
        }
        try:
            handlers[request["kind"]](request)
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            self._show_error(error)

    def _go(self, request: Request) -> None:
        """Show the requested text, head and window, each of which is optional."""
        texts = self._texts.choices
        text = str(request["text"]) if "text" in request else texts[int(request.get("given", 0)) % len(texts)]
        recorded = self._texts.cached(text)
        self._tasks.cancel("text")  # a later request replaces a text that is still being recorded
        if text == self._text and self._state.model is not None:
            self._open(request)
        elif recorded is not None:
            self._show_text(text, recorded, request)
        else:
            self._tasks.start("text", self._record_steps(text if text in texts else check_typed(text), request))

    def _record_steps(self, text: str, request: Request) -> Steps:
        yield lambda: self._show_status("running the model …", busy=True)
        recorded = self._texts.recorded(text)
        yield lambda: self._show_text(text, recorded, request)

    def _zoom(self, request: Request) -> None:
        self._chart.show(parse_window(request, self._shape))
        self._draw_window()

    def _point(self, request: Request) -> None:
        self._select(*parse_cell(request["query"], request["key"], self._shape))

    def _apply_settings(self, request: Request) -> None:
        reduce, hide = request["reduce"], bool(request["hide"])
        if reduce not in ("max", "mean"):
            raise ValueError(f"reduce is {reduce!r}; expected 'max' or 'mean'")
        self._chart.set_palette(request["palette"], bool(request["log"]))
        if (reduce, hide) != (self._reduce, self._hide):
            self._reduce, self._hide = reduce, hide
            self._draw()

    def _apply_theme(self, request: Request) -> None:
        self._chart.set_theme(*(str(request[name]) for name in ("text", "line", "paper", "nothing")))

    # -- a text --------------------------------------------------------------------------------------------------

    def _show_text(self, text: str, recorded: Recorded, request: Request) -> None:
        self._tasks.cancel_all()
        self._text, self._cursor = text, None
        self._cache = cache = recorded.cache
        texts = self._texts.choices
        self._state.update(thumbnails=None, head=None, tokens=None, cell=None, top_tokens=None, calculation=None)
        self._state.model = {
            **_payloads.model_payload(cache),
            "text": text,
            "given": [short_token(line) for line in texts],
            "chosen": texts.index(text) if text in texts else None,
            "runs": self._texts.runs,
            "longest": MAX_TYPED_LETTERS,
            "notes": recorded.notes,
        }
        self._show_status("")
        self._tasks.start("thumbnails", self._thumbnail_steps(cache), background=True)
        if "head" in request:
            self._open(request)
            return

        def first_head_steps() -> Steps:
            head = ".".join(map(str, cache.clearest_head()))
            yield lambda: self._open({**request, "head": head})

        self._tasks.start("first", first_head_steps())

    def _thumbnail_steps(self, cache: RecordingCache) -> Steps:
        """Send the thumbnails, one layer per step."""
        for name, stack in cache.recording.stacks.items():
            for layer in range(len(stack.layers)):
                payload = _payloads.layer_payload(cache, name, layer)
                yield lambda payload=payload: self._state.update(thumbnails=payload)

    # -- a head --------------------------------------------------------------------------------------------------

    @property
    def _stack(self) -> Stack:
        return self._cache.recording[self._address[0]]

    @property
    def _shape(self) -> tuple[int, int]:
        return len(self._stack.queries), len(self._stack.keys)

    def _open(self, request: Request) -> None:
        """Show the requested head and window."""
        before = self._state.head
        if "head" in request:
            self._address = parse_address(self._cache.recording, str(request["head"]))
        now = _payloads.head_payload(self._cache, self._address)
        if now != before:
            if before is not None and before["stack"] != now["stack"]:
                self._cursor = None
            self._chart.open(*self._shape, weight_floor(self._shape[1]))
            self._state.head = now
        self._chart.show(parse_window(request, self._shape))
        self._draw()
        cursor = request.get("cursor") or self._cursor
        if cursor is None:
            self._tasks.start("cell", self._strongest_cell_steps(self._cache, self._address))
        else:
            query, key = cursor
            self._select(*parse_cell(query, key, self._shape))

    @property
    def _drawing(self) -> HeadDrawing:
        return HeadDrawing(self._cache, self._address, self._reduce, self._hide)

    def _draw(self) -> None:
        """Draw the overview, then the window."""
        self._show_status("")
        self._tasks.start("overview", self._overview_steps(self._drawing), background=True)
        self._draw_window()

    def _overview_steps(self, drawing: HeadDrawing) -> Steps:
        cache, address, reduce, hide = drawing
        overview = cache.overview(address, hide=hide)
        window = overview.heatmaps.window
        if not overview.finished and window.cells > band_cells(cache.recording.weights(address)):
            thumbnail = cache.thumbnails(address[0], address[1])[address[2]].values
            preview = Heatmap(window, BinSize.from_window(window, max(thumbnail.shape)), thumbnail)
            yield lambda: self._chart.draw_overview(preview, exact=False)
        shown_percent = 0
        while not overview.finished:
            overview.advance()
            percent = int(100 * overview.progress)
            changed = percent > shown_percent
            yield (lambda percent=percent: self._show_status("overview", percent=percent)) if changed else None
            shown_percent = percent
        yield lambda: self._finish_overview(overview.heatmaps.heatmap(reduce).downsampled(reduce, MAX_PAGE_BINS))

    def _finish_overview(self, heatmap: Heatmap) -> None:
        self._chart.draw_overview(heatmap)
        self._show_status("")
        self._draw_window()

    # -- a window ------------------------------------------------------------------------------------------------

    def _on_ranges_update(self, event: RangesUpdate) -> None:
        edges = [event.x0, event.x1, event.y0, event.y1]
        x0, x1, y0, y1 = (float("nan") if edge is None else float(edge) for edge in edges)
        if self._state.head is not None and np.isfinite([x0, x1, y0, y1]).all():
            self._chart.set_ranges((x0, x1), (y0, y1))
            self._draw_window()

    def _draw_window(self) -> None:
        """Draw the labels, the profiles and the heatmap of the window."""
        if self._state.head is None:
            return
        window = self._chart.window
        self._chart.label_axes(self._stack.queries, self._stack.keys)
        self._state.tokens = _payloads.window_payload(self._cache, self._address[0], window)
        self._tasks.start("window", self._window_steps(self._drawing, window))

    def _window_steps(self, drawing: HeadDrawing, window: HeatmapWindow) -> Steps:
        cache, address, reduce, hide = drawing
        overview = cache.overview(address, hide=hide)
        if overview.finished:
            received = overview.received.copy()
            received[cache.hidden_keys(address[0]) if hide else []] = 0
            yield lambda: self._chart.draw_profiles(overview.entropy, received, reduce)
            _, _, *lengths = cache.recording[address[0]].layers[0].shape
            if max(lengths) <= MAX_PAGE_BINS:  # the overview has every cell
                yield lambda: self._chart.draw_detail(None)
                return
        weights = cache.weights(address, hide=hide)
        if is_exact(weights, window):
            detail = ProgressiveHeatmap(weights, window, MAX_PAGE_BINS, (reduce,))
            while not detail.finished:
                detail.advance()
                yield None
            yield lambda: self._chart.draw_detail(detail.heatmap(reduce))
        elif overview.finished:
            heatmap = overview.heatmaps.heatmap(reduce)
            yield lambda: self._chart.draw_detail(heatmap.crop(window).downsampled(reduce, MAX_PAGE_BINS))

    # -- a cell --------------------------------------------------------------------------------------------------

    def _select(self, query: int, key: int) -> None:
        """Move the cursor to a cell and send its payloads, the fastest first."""
        self._cursor = (query, key)
        self._chart.mark(query, key)
        cache, address, window = self._cache, self._address, self._chart.window
        self._tasks.start("cell", self._cell_steps(cache, address, query, key, window))
        self._tasks.start("top tokens", self._top_token_steps(cache, address, query, key), background=True)

    def _strongest_cell_steps(self, cache: RecordingCache, address: Address) -> Steps:
        query, key = cache.strongest_cell(address)
        yield lambda: self._select(query, key)

    def _cell_steps(
        self, cache: RecordingCache, address: Address, query: int, key: int, window: HeatmapWindow
    ) -> Steps:
        cell = _payloads.cell_payload(cache, address, query, key)
        yield lambda: self._state.update(cell=cell)
        row = _payloads.row_payload(cache, address, query, window)
        yield lambda: self._state.update(cell={**cell, **row})
        calculation = _payloads.calculation_payload(cache, address, query, key)
        yield lambda: self._state.update(calculation=calculation)

    def _top_token_steps(self, cache: RecordingCache, address: Address, query: int, key: int) -> Steps:
        for payload in _payloads.top_tokens_payload(cache, address[0], query, key):
            yield None if payload is None else lambda payload=payload: self._state.update(top_tokens=payload)

    # -- status --------------------------------------------------------------------------------------------------

    def _show_status(self, text: str, *, busy: bool = False, percent: int | None = None, error: bool = False) -> None:
        self._state.status = {"text": text, "busy": busy or percent is not None, "percent": percent, "error": error}

    def _show_error(self, error: Exception) -> None:
        self._show_status(" ".join(str(error).split())[:500] or type(error).__name__, error=True)
