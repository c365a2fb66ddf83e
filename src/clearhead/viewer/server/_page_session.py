"""Server-side session of one page: handles the page's requests and draws its charts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from bokeh.document import Document
from bokeh.events import RangesUpdate

from clearhead._utils.color_scales import weight_floor
from clearhead._utils.fonts import font_face
from clearhead._utils.text import short_token
from clearhead.viewer import _payloads
from clearhead.viewer._charts import PALETTES, HeadChart
from clearhead.viewer._heatmap import (
    MAX_PAGE_BINS,
    BinSize,
    Heatmap,
    ProgressiveHeatmap,
    band_cells,
    is_exact,
)
from clearhead.viewer._statistics_table import head_id
from clearhead.viewer._templates import FONT_PATH, TEMPLATES, served_modules
from clearhead.viewer.server._page_state import PageState, Request, parse_address, parse_cell, parse_window
from clearhead.viewer.server._panels.cell import CellPanel, TopTokensPanel
from clearhead.viewer.server._panels.compare import ComparePanel
from clearhead.viewer.server._panels.find import FindPanel
from clearhead.viewer.server._panels.media import MediaPanel
from clearhead.viewer.server._panels.panel import Panel, Selection
from clearhead.viewer.server._panels.thumbnails import ThumbnailsPanel
from clearhead.viewer.server._panels.words import NextTokensPanel, RowPanel, WordsPanel
from clearhead.viewer.server._tasks import PageTasks, Steps
from clearhead.viewer.server._texts import MAX_TYPED_LETTERS, Recorded, Texts

# parts of the page that follow the selection, in the order in which their work starts
_PANELS = (
    WordsPanel,
    MediaPanel,
    ThumbnailsPanel,
    CellPanel,
    RowPanel,
    NextTokensPanel,
    TopTokensPanel,
    FindPanel,
    ComparePanel,
)


class PageSession:
    """Session of one page. Results are cached per text in a `RecordingCache`, which all pages share."""

    def __init__(self, document: Document, texts: Texts) -> None:
        self._texts = texts
        self._text = texts.choices[0]
        cache = texts.first.cache
        self._chart, self._state = HeadChart(), PageState(name="page_state")
        self._shown = Selection(cache, next(iter(cache.recording.heads())), self._chart.window)
        self._tasks = PageTasks(document, texts.worker, self._show_error)
        self._panels: list[Panel] = [panel(self._state, self._tasks, lambda: self._shown, texts) for panel in _PANELS]
        self._handlers: dict[str, Callable[[Request], None]] = {
            "go": self._go,
            "window": self._zoom,
            "cursor": self._point,
            "settings": self._apply_settings,
            "theme": self._apply_theme,
        }
        for panel in self._panels:
            self._handlers |= panel.handlers
        self._state.on_change("ask", lambda attribute, old, new: self._answer(new))
        self._chart.map.on_event(RangesUpdate, self._on_ranges_update)
        with document.models.freeze():  # otherwise Bokeh searches the document for models after each root
            for root in (self._chart.map, self._chart.entropy, self._chart.received, self._state):
                document.add_root(root)
        texts.worker.submit(cache.clearest_head)  # cached until the page has loaded its scripts and asks for a head
        name = cache.recording.model
        document.title = f"clearhead: {name}"
        document.template = TEMPLATES.get_template("viewer.html")
        document.template_variables.update(palettes=PALETTES, import_map=served_modules(), model=name, live=True)
        document.template_variables.update(columns=(), statistics=(), relations=(), sampled=False)
        document.template_variables.update(font_face=font_face(FONT_PATH))
        document.config.notify_connection_status = False  # the page shows its own message

    def close(self) -> None:
        """Cancel all tasks of a page that was closed."""
        self._tasks.close()

    # -- requests ------------------------------------------------------------------------------------------------

    def _answer(self, request: Any) -> None:
        try:
            self._handlers[request["kind"]](request)
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            self._show_error(error)

    def _go(self, request: Request) -> None:
        """Show the requested text, head and window, each of which is optional. Another text keeps the shown head."""
        text = self._texts.chosen(request)
        recorded = self._texts.cached(text)
        self._tasks.cancel("text")  # a later request replaces a text that is still being recorded
        if text == self._text and self._state.model is not None:
            self._open(request)
        elif recorded is not None:
            self._show_text(text, recorded, request)
        else:
            self._tasks.start("text", self._record_steps(text, request))

    def _record_steps(self, text: str, request: Request) -> Steps:
        yield lambda: self._show_status("running the model …", busy=True)
        recorded = self._texts.recorded(text)
        yield lambda: self._show_text(text, recorded, request)

    def _zoom(self, request: Request) -> None:
        self._chart.show(parse_window(request, self._shown.shape))
        self._draw_window()

    def _point(self, request: Request) -> None:
        self._select(*parse_cell(request["query"], request["key"], self._shown.shape))

    def _apply_settings(self, request: Request) -> None:
        reduce, hide, weighted = request["reduce"], bool(request["hide"]), bool(request.get("weighted"))
        if reduce not in ("max", "mean"):
            raise ValueError(f"reduce is {reduce!r}; expected 'max' or 'mean'")
        self._chart.set_palette(request["palette"], bool(request["log"]))
        changed = replace(self._shown, reduce=reduce, hide=hide, weighted=weighted)
        if changed != self._shown:
            self._shown = changed
            if self._state.head is None:  # settings of an address, which come before its head
                return
            self._draw()
            for panel in self._panels:
                panel.settings_changed()

    def _apply_theme(self, request: Request) -> None:
        self._chart.set_theme(*(str(request[name]) for name in ("text", "line", "paper", "nothing")))

    # -- a text --------------------------------------------------------------------------------------------------

    def _show_text(self, text: str, recorded: Recorded, request: Request) -> None:
        self._tasks.cancel_all()
        if "head" not in request and self._state.head is not None:
            request = {**request, "head": head_id(self._shown.address)}
        self._text, cache = text, recorded.cache
        self._shown = replace(self._shown, cache=cache, address=next(iter(cache.recording.heads())), cursor=None)
        texts = self._texts.choices
        answers = set(PageState.__annotations__) - {"ask", "model", "status"}
        self._state.update(**dict.fromkeys(answers))
        self._state.model = {
            **_payloads.model_payload(cache),
            "text": text,
            "given": [short_token(line) for line in texts],
            "chosen": texts.index(text) if text in texts else None,
            "runs": self._texts.runs,
            "compared": None if self._texts.compared is None else self._texts.compared.recording.model,
            "longest": MAX_TYPED_LETTERS,
            "notes": recorded.notes,
        }
        self._show_status("")
        for panel in self._panels:
            panel.text_changed()
        if "head" in request:
            self._open(request)
            return

        def first_head_steps() -> Steps:
            head = head_id(cache.clearest_head())
            yield lambda: self._open({**request, "head": head})

        self._tasks.start("first", first_head_steps())

    # -- a head --------------------------------------------------------------------------------------------------

    def _open(self, request: Request) -> None:
        """Show the requested head and window."""
        before = self._state.head
        if "head" in request:
            address = parse_address(self._shown.cache.recording, str(request["head"]))
            cursor = None if before is not None and before["stack"] != address[0] else self._shown.cursor
            self._shown = replace(self._shown, address=address, cursor=cursor)
        shown = self._shown
        now = _payloads.head_payload(shown.address)
        if now != before:
            self._chart.open(*shown.shape, weight_floor(shown.shape[1]))
            self._state.head = now
        self._chart.show(parse_window(request, shown.shape))
        if now != before:  # first, so that the words are computed before the heatmap
            self._shown = replace(shown, window=self._chart.window)
            for panel in self._panels:
                panel.head_changed()
        self._draw()
        cursor = request.get("cursor") or shown.cursor
        if cursor is None:
            self._tasks.start("cell", self._strongest_cell_steps(shown))
        else:
            query, key = cursor
            self._select(*parse_cell(query, key, shown.shape))

    def _draw(self) -> None:
        """Draw the overview, then the window."""
        self._show_status("")
        self._tasks.start("overview", self._overview_steps(self._shown), background=True)
        self._draw_window()

    def _overview_steps(self, shown: Selection) -> Steps:
        cache, address, reduce = shown.cache, shown.address, shown.reduce
        overview = cache.overview(address, **shown.heatmap_options)
        window = overview.heatmaps.window
        if not overview.finished and window.cells > band_cells(cache.recording.weights(address)):
            thumbnail = cache.thumbnails(*address[:2], **shown.heatmap_options)[address[2]].values
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
        is_moved = self._shown.window != self._chart.window
        self._shown = shown = replace(self._shown, window=self._chart.window)
        self._chart.label_axes(shown.stack)
        self._state.tokens = _payloads.window_payload(shown.cache, shown.address[0], shown.window)
        self._tasks.start("window", self._window_steps(shown))
        for panel in self._panels if is_moved else ():
            panel.window_changed()

    def _window_steps(self, shown: Selection) -> Steps:
        cache, address, reduce, hide = shown.cache, shown.address, shown.reduce, shown.hide
        overview = cache.overview(address, **shown.heatmap_options)
        if overview.finished:
            received = overview.received.copy()
            received[cache.hidden_keys(address[0]) if hide else []] = 0
            yield lambda: self._chart.draw_profiles(overview.entropy, received, reduce)
            if max(shown.shape) <= MAX_PAGE_BINS:  # the overview has every cell
                yield lambda: self._chart.draw_detail(None)
                return
        weights = cache.weights(address, **shown.heatmap_options)
        if is_exact(weights, shown.window):
            detail = ProgressiveHeatmap(weights, shown.window, MAX_PAGE_BINS, (reduce,))
            while not detail.finished:
                detail.advance()
                yield None
            yield lambda: self._chart.draw_detail(detail.heatmap(reduce))
        elif overview.finished:
            heatmap = overview.heatmaps.heatmap(reduce)
            yield lambda: self._chart.draw_detail(heatmap.crop(shown.window).downsampled(reduce, MAX_PAGE_BINS))

    # -- a cell --------------------------------------------------------------------------------------------------

    def _select(self, query: int, key: int) -> None:
        """Move the cursor to a cell."""
        self._shown = replace(self._shown, cursor=(query, key))
        self._chart.mark(query, key)
        for panel in self._panels:
            panel.cell_changed()

    def _strongest_cell_steps(self, shown: Selection) -> Steps:
        query, key = shown.cache.strongest_cell(shown.address)
        yield lambda: self._select(query, key)

    # -- status --------------------------------------------------------------------------------------------------

    def _show_status(self, text: str, *, busy: bool = False, percent: int | None = None, error: bool = False) -> None:
        self._state.status = {"text": text, "busy": busy or percent is not None, "percent": percent, "error": error}

    def _show_error(self, error: Exception) -> None:
        self._show_status(" ".join(str(error).split())[:500] or type(error).__name__, error=True)
