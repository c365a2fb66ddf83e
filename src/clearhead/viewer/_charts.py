"""The map of one head and the profiles along its sides, as Bokeh figures that share their ranges."""

from __future__ import annotations

from typing import Any

import numpy as np
from bokeh import palettes
from bokeh.models import (
    BasicTicker,
    ColumnDataSource,
    FixedTicker,
    GlyphRenderer,
    LinearColorMapper,
    LogColorMapper,
    NumeralTickFormatter,
    PanTool,
    PlainText,
    Range1d,
    WheelZoomTool,
)
from bokeh.plotting import figure

from clearhead._utils.text import short_token
from clearhead.ops.statistics import Reduce
from clearhead.recording.recording import Tokens
from clearhead.viewer._heatmap import Plate, Window

# all of them can be read by colour-blind people, and in grey; the first colour stands for no attention
PALETTES: dict[str, tuple[str, ...]] = {
    "viridis": palettes.Viridis256,
    "cividis": palettes.Cividis256,
    "magma": palettes.Magma256,
    "blues": tuple(reversed(palettes.Blues256)),
    "greys": tuple(reversed(palettes.Greys256)),
}
LABELLED = 40  # tokens on an axis, at most
LETTERS = 14  # columns of a token on an axis
PROFILE = 512  # bars along a side, at most
_BORDER = {"left": 125, "right": 8, "top": 112, "bottom": 26}  # the same wherever frames have to line up
_BAR = "#2f6fb0"
_CURSOR = "#e6007e"


class HeadChart:
    """Three figures: `map`, `entropy` along its queries, `received` along its keys."""

    def __init__(self) -> None:
        self.queries, self.keys = Range1d(start=1, end=0), Range1d(start=0, end=1)  # the first query is on top
        self.whole, self.detail, self.cursor = _image_source(), _image_source(), ColumnDataSource(_NO_CELL)
        self._bars = {name: ColumnDataSource(_NO_BARS) for name in ("entropy", "received")}
        self._linear = LinearColorMapper(palette=PALETTES["viridis"], low=0.0, high=1.0)
        self._log = LogColorMapper(palette=PALETTES["viridis"], low=1e-3, high=1.0)
        self._shape, self.window = (1, 1), Window(0, 1, 0, 1)
        self._most: dict[str, float] = {}  # the largest weight of what is drawn: "whole", "window"
        self.map = self._map()
        self.entropy, self.received = self._entropy(), self._received()

    # -- what is shown -------------------------------------------------------------------------------------------

    def open(self, q_len: int, kv_len: int, floor: float) -> None:
        """Another matrix: nothing is shown of it yet. Weights up to `floor` are as dark as none."""
        self._shape, self._most = (q_len, kv_len), {}
        self._log.update(low=floor, high=1.0)
        for axis in (self.queries, self.keys):
            axis.update(bounds=None, min_interval=None)  # a page would hold the new window within the old bounds
        self.show(Window(0, q_len, 0, kv_len))
        for axis, length in ((self.queries, q_len), (self.keys, kv_len)):
            axis.update(bounds=(0, length), min_interval=min(4, length))
        for source in (self.whole, self.detail):
            source.data = _NO_IMAGE
        self.cursor.data = _NO_CELL
        for bars in self._bars.values():
            bars.data = _NO_BARS

    def show(self, window: Window) -> None:
        """Pan and zoom to a window."""
        self.window = window
        self.queries.update(start=window.row_end, end=window.row)
        self.keys.update(start=window.key, end=window.key_end)

    def moved(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        """The reader has panned or zoomed: the window becomes the cells that can be seen."""
        edges = []
        for places, length in ((y, self._shape[0]), (x, self._shape[1])):
            low, high = min(places), max(places)
            first = min(max(0, int(np.floor(low + 1e-6))), length - 1)
            edges += [first, min(length, max(first + 1, int(np.ceil(high - 1e-6))))]
        self.window = Window(*edges)

    def draw(self, plate: Plate | None, *, whole: bool, exact: bool = True) -> None:
        """A picture of the whole matrix, or over it of a window; None takes it away."""
        source = self.whole if whole else self.detail
        source.data = _NO_IMAGE if plate is None else _image(plate, exact)
        self._most.pop("whole" if whole else "window", None)
        if plate is not None:
            self._most["whole" if whole else "window"] = float(plate.values.max(initial=0.0))
        self._linear.high = max(self._most.get("window", self._most.get("whole", 1.0)), 1e-6)

    def mark(self, query: int, key: int) -> None:
        """Draw the cursor around a cell."""
        self.cursor.data = {"x": [key + 0.5], "y": [query + 0.5]}

    def profile(self, entropy: np.ndarray, received: np.ndarray, reduce: Reduce) -> None:
        """Entropy of each query and what each key receives, in bars that fit the window."""
        window = self.window
        self._bars["entropy"].data = bars = _bars(entropy, window.row, window.row_end, reduce)
        self.entropy.x_range.update(start=0, end=max(1e-6, 1.05 * float(np.max(bars["value"]))))
        self._bars["received"].data = bars = _bars(received, window.key, window.key_end, reduce)
        self.received.y_range.update(start=0, end=max(1e-6, 1.05 * float(np.max(bars["value"]))))

    def label(self, queries: Tokens, keys: Tokens) -> None:
        """Tokens on both axes where they fit, numbers otherwise."""
        window = self.window
        _label(self.map.yaxis[0], queries, window.row, window.row_end, across=False)
        _label(self.map.xaxis[0], keys, window.key, window.key_end, across=True)

    def colour(self, palette: str, logarithmic: bool) -> None:
        for mapper in (self._linear, self._log):
            mapper.palette = list(PALETTES[palette])
        for picture in self.map.select({"type": GlyphRenderer, "tags": "picture"}):
            picture.visible = (picture.glyph.color_mapper is self._log) == logarithmic

    def ink(self, text: str, line: str, paper: str, nothing: str) -> None:
        """Colours of a light or a dark page; `nothing` is that of cells without any weight."""
        for mapper in (self._linear, self._log):
            mapper.nan_color = nothing
        for chart in (self.map, self.entropy, self.received):
            # a fill that is clear would keep what was drawn there before
            chart.update(background_fill_color=paper, border_fill_color=paper, outline_line_color=line)
            for axis in (*chart.xaxis, *chart.yaxis):
                axis.update(
                    major_label_text_color=text,
                    axis_label_text_color=text,
                    axis_line_color=line,
                    major_tick_line_color=line,
                )

    # -- how it is built -----------------------------------------------------------------------------------------

    def _map(self) -> Any:
        chart = _figure("map", x_range=self.keys, y_range=self.queries, x_axis_location="above")
        wheel = WheelZoomTool(zoom_on_axis=True)
        chart.add_tools(wheel, PanTool())
        chart.toolbar.active_scroll = wheel
        chart.lod_timeout = 60  # milliseconds after the last turn of the wheel that its window is asked for
        # each once in either scale: where a glyph gets another mapper, Bokeh still draws some with the one it had first
        for name, source in (("whole", self.whole), ("detail", self.detail)):
            for mapper in (self._log, self._linear):
                drawn = chart.image("image", "x", "y", "dw", "dh", source=source, color_mapper=mapper, name=name)
                drawn.update(visible=mapper is self._log, tags=["picture"])
        chart.rect("x", "y", 1, 1, source=self.cursor, name="cursor", fill_color=None, line_color=_CURSOR, line_width=2)
        chart.xaxis.axis_label, chart.yaxis.axis_label = "keys", "queries"
        return chart

    def _entropy(self) -> Any:
        chart = _figure("entropy", x_range=Range1d(start=0, end=1), y_range=self.queries, left=4, right=10)
        chart.quad(left=0, right="value", top="start", bottom="end", source=self._bars["entropy"], color=_BAR)
        chart.yaxis.visible = False
        chart.xaxis.ticker = BasicTicker(desired_num_ticks=2)
        return chart

    def _received(self) -> Any:
        chart = _figure("received", x_range=self.keys, y_range=Range1d(start=0, end=1), top=4, bottom=6)
        chart.quad(left="start", right="end", top="value", bottom=0, source=self._bars["received"], color=_BAR)
        chart.xaxis.visible = False
        chart.yaxis.ticker = BasicTicker(desired_num_ticks=2)
        return chart


_NO_IMAGE: dict[str, Any] = {name: [] for name in ("image", "scores", "x", "y", "dw", "dh", "rows", "keys", "exact")}
_NO_CELL: dict[str, Any] = {"x": [], "y": []}
_NO_BARS: dict[str, Any] = {"start": [], "end": [], "value": []}


def _image_source() -> ColumnDataSource:
    return ColumnDataSource(_NO_IMAGE)


def _image(plate: Plate, exact: bool) -> dict[str, Any]:
    """A picture as Bokeh draws it: from a corner, the first query's and key's."""
    row, row_end, key, key_end = plate.window
    down, across = plate.values.shape
    # the last bins may hold fewer cells, but all are drawn alike: the picture is as large as if they were whole
    rows, keys = plate.steps
    if not exact:  # rows from here and there stand for all
        rows, keys = (row_end - row) / down, (key_end - key) / across
    values = np.where(plate.values > 0, plate.values, np.nan).astype(np.float32)
    return {
        "image": [values],
        "scores": [np.zeros((0, 0), np.float32) if plate.scores is None else plate.scores],
        "x": [key],
        "y": [row],
        "dw": [across * keys],
        "dh": [down * rows],
        "rows": [rows],
        "keys": [keys],
        "exact": [exact],
    }


def _bars(values: np.ndarray, start: int, end: int, reduce: Reduce) -> dict[str, Any]:
    step = -(-(end - start) // PROFILE)
    starts = np.arange(start, end, step)
    ends = np.minimum(starts + step, end)
    inside = starts - start
    if reduce == "max":
        pooled = np.maximum.reduceat(values[start:end], inside)
    else:
        pooled = np.add.reduceat(values[start:end], inside) / (ends - starts)
    return {"start": starts, "end": ends, "value": pooled}


def _label(axis: Any, tokens: Tokens, start: int, end: int, *, across: bool) -> None:
    if end - start > LABELLED:
        formatter = NumeralTickFormatter(format="0,0")
        axis.update(ticker=BasicTicker(), major_label_overrides={}, formatter=formatter, major_label_orientation=0.0)
        return
    places = [place + 0.5 for place in range(start, end)]
    # plain text: what looks like a formula is a token all the same; isolated, so that its direction stays its own
    labels = {
        place: PlainText(text=f"\u2068{short_token(tokens.texts[int(place)], LETTERS)}\u2069") for place in places
    }
    upright = np.pi / 2 if across else 0.0
    ticker = FixedTicker(ticks=places)
    axis.update(ticker=ticker, major_label_overrides=labels, major_label_orientation=upright)


def _figure(name: str, *, x_range: Range1d, y_range: Range1d, **sides: Any) -> Any:
    borders = {side: sides.pop(side, size) for side, size in _BORDER.items()}
    chart = figure(
        name=name,
        x_range=x_range,
        y_range=y_range,
        tools="",
        toolbar_location=None,
        sizing_mode="stretch_both",
        background_fill_color=None,  # until the page has said which colours it has; white would shine through at edges
        border_fill_color=None,
        **{f"min_border_{side}": size for side, size in borders.items()},
        **sides,
    )
    chart.grid.visible = False
    for axis in (*chart.xaxis, *chart.yaxis):
        axis.update(minor_tick_line_color=None, major_label_text_font_size="12px", axis_label_text_font_style="normal")
    return chart
