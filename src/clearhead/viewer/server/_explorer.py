"""One page: what it asks for, and what it is shown."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from bokeh.core.properties import Any as AnyValue
from bokeh.document import Document
from bokeh.events import RangesUpdate
from bokeh.model import DataModel

from clearhead._utils.color_scales import weight_floor
from clearhead._utils.text import short_token
from clearhead.recording.recording import Address, Stack
from clearhead.viewer import _heatmap, _payloads
from clearhead.viewer._charts import PALETTES, HeadChart
from clearhead.viewer._heatmap import SCREEN, Picture, Plate, Window
from clearhead.viewer._pages import PAGES
from clearhead.viewer._recording_cache import Gallery
from clearhead.viewer.server._tasks import Jobs, Steps
from clearhead.viewer.server._texts import MAX_TYPED_LETTERS, Recorded, Texts, check_typed


class Drawing(NamedTuple):
    """What of a head is drawn. A job keeps the one it was started with."""

    gallery: Gallery
    address: Address
    reduce: _heatmap.Reduce
    hide: bool


class Wire(DataModel):
    """What goes between the page's own script and this side: `ask` comes from there, everything else goes there."""

    ask: Any = AnyValue(default=None)
    model: Any = AnyValue(default=None)
    thumbnails: Any = AnyValue(default=None)
    head: Any = AnyValue(default=None)
    tokens: Any = AnyValue(default=None)
    cell: Any = AnyValue(default=None)
    looks: Any = AnyValue(default=None)
    calculation: Any = AnyValue(default=None)
    status: Any = AnyValue(default=None)


class Explorer:
    """Answers one page. What it computes is kept in the texts' galleries, which all pages share."""

    def __init__(self, document: Document, texts: Texts) -> None:
        self._texts = texts
        self._text = texts.choices[0]
        self._gallery = texts.first.gallery
        self._address: Address = next(iter(self._gallery.recording.heads()))
        self._cursor: tuple[int, int] | None = None  # of this text; None before there is one
        self._reduce: _heatmap.Reduce = "max"
        self._hide = False
        self._chart, self._wire = HeadChart(), Wire(name="wire")
        self._jobs = Jobs(document, texts.worker, self._failed)
        self._wire.on_change("ask", lambda attribute, old, new: self._asked(new))
        self._chart.map.on_event(RangesUpdate, self._panned)
        for root in (self._chart.map, self._chart.entropy, self._chart.received, self._wire):
            document.add_root(root)
        name = self._gallery.recording.model
        document.title = f"clearhead: {name}"
        document.template = PAGES.get_template("viewer.html")
        document.template_variables.update(palettes=PALETTES, model=name, live=True)
        document.config.notify_connection_status = False  # the page says it itself

    def close(self) -> None:
        """Stop computing for a page that was left."""
        self._jobs.close()

    # -- what a page can ask for ---------------------------------------------------------------------------------

    def _asked(self, ask: Any) -> None:
        answers = {
            "go": self._go,
            "window": self._zoom,
            "cursor": self._point,
            "settings": self._set,
            "theme": self._paint,
        }
        try:
            answers[ask["kind"]](ask)
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            self._failed(error)

    def _go(self, ask: dict[str, Any]) -> None:
        """To a text, a head and a window of it, any of which may be left out."""
        given = self._texts.choices
        text = str(ask["text"]) if "text" in ask else given[int(ask.get("given", 0)) % len(given)]
        kept = self._texts.cached(text)
        self._jobs.cancel("text")  # whoever goes elsewhere meanwhile does not want to be taken there
        if text == self._text and self._wire.model is not None:
            self._open(ask)
        elif kept is not None:
            self._show_text(text, kept, ask)
        else:
            self._jobs.start("text", self._run(text if text in given else check_typed(text), ask))

    def _run(self, text: str, ask: dict[str, Any]) -> Steps:
        yield lambda: self._say("running the model …", busy=True)
        found = self._texts.recorded(text)
        yield lambda: self._show_text(text, found, ask)

    def _zoom(self, ask: dict[str, Any]) -> None:
        self._chart.show(self._window(ask))
        self._moved()

    def _point(self, ask: dict[str, Any]) -> None:
        self._select(*self._fitted(ask["query"], ask["key"]))

    def _set(self, ask: dict[str, Any]) -> None:
        reduce, hide = ask["reduce"], bool(ask["hide"])
        if reduce not in ("max", "mean"):
            raise ValueError(f"reduce is {reduce!r}")
        self._chart.colour(ask["palette"], bool(ask["log"]))
        if (reduce, hide) != (self._reduce, self._hide):
            self._reduce, self._hide = reduce, hide
            self._draw()

    def _paint(self, ask: dict[str, Any]) -> None:
        self._chart.ink(*(str(ask[name]) for name in ("text", "line", "paper", "nothing")))

    # -- a text --------------------------------------------------------------------------------------------------

    def _show_text(self, text: str, found: Recorded, ask: dict[str, Any]) -> None:
        self._jobs.cancel_all()
        self._text, self._cursor = text, None
        self._gallery = gallery = found.gallery
        given = self._texts.choices
        self._wire.update(thumbnails=None, head=None, tokens=None, cell=None, looks=None, calculation=None)
        self._wire.model = {
            **_payloads.model_facts(gallery),
            "text": text,
            "given": [short_token(own) for own in given],
            "chosen": given.index(text) if text in given else None,
            "runs": self._texts.runs,
            "longest": MAX_TYPED_LETTERS,
            "notes": found.notes,
        }
        self._say("")
        self._jobs.start("thumbnails", self._thumbnails(gallery), behind=True)
        if "head" in ask:
            self._open(ask)
            return

        def first() -> Steps:
            head = ".".join(map(str, gallery.clearest()))
            yield lambda: self._open({**ask, "head": head})

        self._jobs.start("first", first())

    def _thumbnails(self, gallery: Gallery) -> Steps:
        """Layer by layer; each is sent as it is done."""
        for name, stack in gallery.recording.stacks.items():
            for layer in range(len(stack.layers)):
                found = _payloads.layer_facts(gallery, name, layer)
                yield lambda found=found: self._wire.update(thumbnails=found)

    # -- a head --------------------------------------------------------------------------------------------------

    @property
    def _stack(self) -> Stack:
        return self._gallery.recording[self._address[0]]

    @property
    def _shape(self) -> tuple[int, int]:
        return len(self._stack.queries), len(self._stack.keys)

    def _open(self, ask: dict[str, Any]) -> None:
        """A head, and a window of it where one is asked for."""
        before = self._wire.head
        if "head" in ask:
            self._address = self._read_address(str(ask["head"]))
        now = _payloads.head_facts(self._gallery, self._address)
        if now != before:
            if before is not None and before["stack"] != now["stack"]:
                self._cursor = None
            self._chart.open(*self._shape, weight_floor(self._shape[1]))
            self._wire.head = now
        self._chart.show(self._window(ask))
        self._draw()
        cursor = ask.get("cursor") or self._cursor
        if cursor is None:
            self._jobs.start("cell", self._strongest(self._gallery, self._address))
        else:
            self._select(*self._fitted(*cursor))

    @property
    def _drawing(self) -> Drawing:
        return Drawing(self._gallery, self._address, self._reduce, self._hide)

    def _draw(self) -> None:
        """The whole matrix, then the window."""
        self._say("")
        self._jobs.start("overview", self._overview(self._drawing), behind=True)
        self._moved()

    def _overview(self, drawing: Drawing) -> Steps:
        gallery, address, reduce, hide = drawing
        overview = gallery.overview(address, hide=hide)
        whole = overview.picture.window
        if not overview.finished and whole.cells > _heatmap.band_cells(gallery.recording.weights(address)):
            sample = gallery.thumbnails(address[0], address[1])[address[2]].values
            plate = Plate(whole, _heatmap.BinSize.over(whole, max(sample.shape)), sample)
            yield lambda: self._chart.draw(plate, whole=True, exact=False)
        said = 0
        while not overview.finished:
            overview.advance()
            percent = int(100 * overview.progress)
            yield (lambda percent=percent: self._say("overview", percent=percent)) if percent > said else None
            said = percent
        yield lambda: self._finish_overview(overview.picture.plate(reduce).coarser(reduce, SCREEN))

    def _finish_overview(self, plate: Plate) -> None:
        self._chart.draw(plate, whole=True)
        self._say("")
        self._moved()

    # -- a window ------------------------------------------------------------------------------------------------

    def _panned(self, event: RangesUpdate) -> None:
        edges = [event.x0, event.x1, event.y0, event.y1]
        x0, x1, y0, y1 = (float("nan") if edge is None else float(edge) for edge in edges)
        if self._wire.head is not None and np.isfinite([x0, x1, y0, y1]).all():
            self._chart.moved((x0, x1), (y0, y1))
            self._moved()

    def _moved(self) -> None:
        """Another window is looked at."""
        if self._wire.head is None:
            return
        window = self._chart.window
        self._chart.label(self._stack.queries, self._stack.keys)
        self._wire.tokens = _payloads.window_facts(self._gallery, self._address[0], window)
        self._jobs.start("window", self._window_steps(self._drawing, window))

    def _window_steps(self, drawing: Drawing, window: Window) -> Steps:
        gallery, address, reduce, hide = drawing
        overview = gallery.overview(address, hide=hide)
        if overview.finished:
            received = overview.received.copy()
            received[gallery.hidden_keys(address[0]) if hide else []] = 0
            yield lambda: self._chart.profile(overview.entropy, received, reduce)
            _, _, *lengths = gallery.recording[address[0]].layers[0].shape
            if max(lengths) <= SCREEN:  # every cell is there already
                yield lambda: self._chart.draw(None, whole=False)
                return
        weights = gallery.weights(address, hide=hide)
        if _heatmap.is_exact(weights, window):
            picture = Picture(weights, window, SCREEN, (reduce,))
            while not picture.finished:
                picture.advance()
                yield None
            yield lambda: self._chart.draw(picture.plate(reduce), whole=False)
        elif overview.finished:
            yield lambda: self._chart.draw(
                overview.picture.plate(reduce).crop(window).coarser(reduce, SCREEN), whole=False
            )

    # -- a cell --------------------------------------------------------------------------------------------------

    def _select(self, query: int, key: int) -> None:
        """Put the cursor on a cell; what is said of it follows, the quickest first."""
        self._cursor = (query, key)
        self._chart.mark(query, key)
        place = (self._gallery, self._address)
        self._jobs.start("cell", self._cell(*place, query, key, self._chart.window))
        self._jobs.start("looks", self._looks(*place, query, key), behind=True)

    def _strongest(self, gallery: Gallery, address: Address) -> Steps:
        query, key = gallery.strongest(address)
        yield lambda: self._select(query, key)

    def _cell(self, gallery: Gallery, address: Address, query: int, key: int, window: Window) -> Steps:
        found = _payloads.cell_facts(gallery, address, query, key)
        yield lambda: self._wire.update(cell=found)
        row = _payloads.row_facts(gallery, address, query, window)
        yield lambda: self._wire.update(cell={**found, **row})
        worked = _payloads.calculation_facts(gallery, address, query, key)
        yield lambda: self._wire.update(calculation=worked)

    def _looks(self, gallery: Gallery, address: Address, query: int, key: int) -> Steps:
        for found in _payloads.looks_facts(gallery, address[0], query, key):
            yield None if found is None else lambda found=found: self._wire.update(looks=found)

    # -- reading, saying -----------------------------------------------------------------------------------------

    def _read_address(self, written: str) -> Address:
        """A head such as "decoder.3.5"; the first one where there is none of that name, as after another text."""
        heads = {".".join(map(str, address)): address for address in self._gallery.recording.heads()}
        return heads.get(written, next(iter(heads.values())))

    def _window(self, ask: dict[str, Any]) -> Window:
        """The window that is asked for, made to fit; all of the matrix where none is."""
        edges = []
        for name, length in zip(("rows", "keys"), self._shape, strict=True):
            start, end = sorted(map(float, ask.get(name) or (0, length)))
            first = int(np.clip(start, 0, length - 1))
            edges += [first, int(np.clip(end, first + 1, length))]
        return Window(*edges)

    def _fitted(self, query: Any, key: Any) -> tuple[int, int]:
        q_len, kv_len = self._shape
        return int(np.clip(int(query), 0, q_len - 1)), int(np.clip(int(key), 0, kv_len - 1))

    def _say(self, text: str, *, busy: bool = False, percent: int | None = None, error: bool = False) -> None:
        self._wire.status = {"text": text, "busy": busy or percent is not None, "percent": percent, "error": error}

    def _failed(self, error: Exception) -> None:
        self._say(" ".join(str(error).split())[:500] or type(error).__name__, error=True)
