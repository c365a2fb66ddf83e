"""Bokeh figures of one head with shared ranges: the heatmap, and bar charts along its sides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from bokeh import palettes
from bokeh.models import (
    BasicTicker,
    BoxAnnotation,
    ColumnDataSource,
    FixedTicker,
    GlyphRenderer,
    LinearColorMapper,
    LogColorMapper,
    NumeralTickFormatter,
    PanTool,
    PlainText,
    PrintfTickFormatter,
    Range1d,
    WheelZoomTool,
)
from bokeh.plotting import figure
from jaxtyping import Float

from clearhead._utils.text import short_token
from clearhead.ops.statistics import Reduce
from clearhead.recording import Stack
from clearhead.recording.row_labels import LABEL_COLUMNS, axis_title, row_label
from clearhead.viewer._heatmap import Heatmap, HeatmapWindow

# readable with color blindness and in gray; the first color means no attention
PALETTES: dict[str, tuple[str, ...]] = {
    "viridis": palettes.Viridis256,
    "cividis": palettes.Cividis256,
    "magma": palettes.Magma256,
    "blues": tuple(reversed(palettes.Blues256)),
    "greys": tuple(reversed(palettes.Greys256)),
}
MAX_AXIS_TOKENS = 40  # longer axes are labeled with numbers
MAX_PROFILE_BARS = 512  # bars in a profile
_BORDERS = {"left": 125, "right": 8, "top": 112, "bottom": 26}  # until borders.js fits them to the labels
_FONT = 'system-ui, "DejaVu Sans", "BIZ UDPGothic", sans-serif'  # the font of page.css
_BAR_COLOR = "#2f6fb0"
_CURSOR_COLORS = {"cursor outline": ("#16181d", 6), "cursor": ("#ffffff", 2)}  # one of them differs from any palette


class HeadChart:
    """Three linked figures: `map` with the heatmaps, `entropy` along the queries, `received` along the keys."""

    def __init__(self) -> None:
        self.queries, self.keys = Range1d(start=1, end=0), Range1d(start=0, end=1)  # the first query is on top
        self.overview, self.detail = ColumnDataSource(_NO_IMAGE), ColumnDataSource(_NO_IMAGE)
        self.cursor = ColumnDataSource(_NO_CELL)
        self._bars = {name: ColumnDataSource(_NO_BARS) for name in ("entropy", "received")}
        transparent = (0, 0, 0, 0)  # masked cells show the hatch behind the heatmap
        self._linear = LinearColorMapper(palette=PALETTES["viridis"], low=0.0, high=1.0, nan_color=transparent)
        self._log = LogColorMapper(palette=PALETTES["viridis"], low=1e-3, high=1.0, nan_color=transparent)
        # annotations, because Bokeh 3.9 cannot draw a figure whose background has a hatch
        hatch: dict[str, Any] = {"line_color": None, "hatch_pattern": "/", "hatch_scale": 10}
        self._hatch = BoxAnnotation(name="masked", level="image", fill_color=None, **hatch)
        # over the overview, which would show through the masked cells of the detail: Bokeh paints the annotations of a
        # level after its glyphs
        self._cover = BoxAnnotation(name="cover", level="underlay", fill_alpha=1.0, visible=False, **hatch)
        self._scale = ("viridis", True)  # palette, and whether the scale is logarithmic
        self._shape, self.window = (1, 1), HeatmapWindow(0, 1, 0, 1)
        self._labeled: tuple[Stack, HeatmapWindow] | None = None  # the axes have the tokens of this window
        self._max_weights: dict[str, float] = {}  # the largest drawn weight of "overview" and "detail"
        self.map = self._build_map()
        self.entropy, self.received = self._build_entropy(), self._build_received()

    def open(self, q_len: int, kv_len: int, floor: float) -> None:
        """Clear the figures for a matrix of a new shape. The log scale starts at the weight `floor`."""
        self._shape, self._max_weights = (q_len, kv_len), {}
        self._log.update(low=floor, high=1.0)
        for axis in (self.queries, self.keys):
            axis.update(bounds=None, min_interval=None)  # the old bounds would clamp the new window
        self.show(HeatmapWindow(0, q_len, 0, kv_len))
        for axis, length in ((self.queries, q_len), (self.keys, kv_len)):
            axis.update(bounds=(0, length), min_interval=min(4, length))
        for source in (self.overview, self.detail):
            source.data = _NO_IMAGE
        self._cover.visible = False
        self.cursor.data = _NO_CELL
        for bars in self._bars.values():
            bars.data = _NO_BARS

    def show(self, window: HeatmapWindow) -> None:
        """Pan and zoom to a window."""
        self.window = window
        self.queries.update(start=window.row_end, end=window.row)
        self.keys.update(start=window.key, end=window.key_end)

    def set_ranges(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        """Set the window to the cells in these ranges, after the user has panned or zoomed."""
        edges = []
        for ends, length in ((y, self._shape[0]), (x, self._shape[1])):
            low, high = min(ends), max(ends)
            first = min(max(0, int(np.floor(low + 1e-6))), length - 1)
            edges += [first, min(length, max(first + 1, int(np.ceil(high - 1e-6))))]
        self.window = HeatmapWindow(*edges)

    def draw_overview(self, heatmap: Heatmap, *, exact: bool = True) -> None:
        """Draw a heatmap of the whole matrix. `exact=False` marks a preview whose rows are a sample."""
        self._draw("overview", self.overview, heatmap, exact)

    def draw_detail(self, heatmap: Heatmap | None) -> None:
        """Draw a heatmap of the window over the overview. None removes the current one."""
        self._draw("detail", self.detail, heatmap, exact=True)
        if heatmap is not None:
            row, row_end, key, key_end = heatmap.window
            self._cover.update(left=key, right=key_end, top=row, bottom=row_end)
        self._cover.visible = heatmap is not None

    def _draw(self, name: str, source: ColumnDataSource, heatmap: Heatmap | None, exact: bool) -> None:
        source.data = _NO_IMAGE if heatmap is None else _image(heatmap, exact)
        self._max_weights.pop(name, None)
        if heatmap is not None:
            self._max_weights[name] = float(heatmap.values.max(initial=0.0))
        high = self._max_weights.get("detail", self._max_weights.get("overview", 1.0))
        self._linear.high = max(high, 1e-6)

    def mark(self, query: int, key: int) -> None:
        """Draw the cursor around a cell."""
        self.cursor.data = {"x": [key + 0.5], "y": [query + 0.5]}

    def draw_profiles(
        self, entropy: Float[np.ndarray, " q_len"], received: Float[np.ndarray, " kv_len"], reduce: Reduce
    ) -> None:
        """Draw bars over the window: the entropy of each query and the attention each key receives."""
        window = self.window
        for chart in (self.entropy, self.received):
            chart.tags = [reduce]  # the page names the reduction of bars that cover several tokens
        self._bars["entropy"].data = bars = _bars(entropy, window.row, window.row_end, reduce)
        self.entropy.x_range.update(start=0, end=max(1e-6, 1.05 * float(np.max(bars["value"]))))
        self._bars["received"].data = bars = _bars(received, window.key, window.key_end, reduce)
        self.received.y_range.update(start=0, end=max(1e-6, 1.05 * float(np.max(bars["value"]))))

    def label_axes(self, stack: Stack) -> None:
        """Label both axes with tokens if they fit, with numbers otherwise. Queries also show what they write."""
        window = self.window
        if self._labeled is not None and self._labeled[0] is stack and self._labeled[1] == window:
            return
        self._labeled = (stack, window)

        def query_label(index: int) -> str:
            return row_label(stack, index)

        def key_label(index: int) -> str:
            return short_token(stack.keys.texts[index], LABEL_COLUMNS)

        _label_axis(self.map.yaxis[0], query_label, window.row, window.row_end, across=False)
        _label_axis(self.map.xaxis[0], key_label, window.key, window.key_end, across=True)
        self.map.yaxis[0].axis_label = axis_title(stack)

    def set_palette(self, palette: str, logarithmic: bool) -> None:
        """Set the colors of the heatmaps and their scale, logarithmic or linear."""
        if (palette, logarithmic) == self._scale:
            return
        for mapper in (self._linear, self._log):
            mapper.palette = list(PALETTES[palette])
        for renderer in self.map.select({"type": GlyphRenderer, "tags": "heatmap"}):
            renderer.visible = (renderer.glyph.color_mapper is self._log) == logarithmic
        self._scale = (palette, logarithmic)

    def set_theme(self, text: str, line: str, paper: str, nothing: str) -> None:
        """Set the colors of a light or dark page. Masked cells show a hatch in the color `nothing`."""
        self._hatch.hatch_color = nothing
        self._cover.update(fill_color=paper, hatch_color=nothing)
        for chart in (self.map, self.entropy, self.received):
            # with a transparent fill Bokeh would not clear the previous frame
            chart.update(background_fill_color=paper, border_fill_color=paper, outline_line_color=line)
            for axis in (*chart.xaxis, *chart.yaxis):
                axis.update(
                    major_label_text_color=text,
                    axis_label_text_color=text,
                    axis_line_color=line,
                    major_tick_line_color=line,
                )

    def _build_map(self) -> Any:
        chart = _figure("map", x_range=self.keys, y_range=self.queries, x_axis_location="above")
        wheel = WheelZoomTool(zoom_on_axis=True)
        chart.add_tools(wheel, PanTool())
        chart.toolbar.active_scroll = wheel
        chart.lod_timeout = 60  # milliseconds from the last wheel event until the new window is requested
        chart.add_layout(self._hatch)
        chart.add_layout(self._cover)
        # one renderer per color scale: Bokeh keeps using the first mapper of a glyph after it is replaced
        for name, source, level in (("overview", self.overview, "underlay"), ("detail", self.detail, "glyph")):
            for mapper in (self._log, self._linear):
                drawn = chart.image("image", "x", "y", "dw", "dh", source=source, color_mapper=mapper, name=name)
                drawn.update(visible=mapper is self._log, tags=["heatmap"], level=level)
        for name, (color, width) in _CURSOR_COLORS.items():
            chart.rect(
                "x", "y", 1, 1, source=self.cursor, name=name, fill_color=None, line_color=color, line_width=width
            )
        for axis, name in ((chart.xaxis[0], "keys"), (chart.yaxis[0], "queries")):
            axis.update(axis_label=name, ticker=FixedTicker(ticks=[]), formatter=NumeralTickFormatter(format="0,0"))
        return chart

    def _build_entropy(self) -> Any:
        chart = _figure("entropy", x_range=Range1d(start=0, end=1), y_range=self.queries, left=4, right=10)
        chart.quad(left=0, right="value", top="start", bottom="end", source=self._bars["entropy"], color=_BAR_COLOR)
        chart.yaxis.visible = False
        chart.xaxis.ticker = BasicTicker(desired_num_ticks=2)
        chart.xaxis.formatter = PrintfTickFormatter(format="%.3g")
        return chart

    def _build_received(self) -> Any:
        chart = _figure("received", x_range=self.keys, y_range=Range1d(start=0, end=1), top=4, bottom=6)
        chart.quad(left="start", right="end", top="value", bottom=0, source=self._bars["received"], color=_BAR_COLOR)
        chart.xaxis.visible = False
        chart.yaxis.ticker = BasicTicker(desired_num_ticks=2)
        chart.yaxis.formatter = PrintfTickFormatter(format="%.3g")
        return chart


_NO_IMAGE: dict[str, Any] = {name: [] for name in ("image", "scores", "x", "y", "dw", "dh", "rows", "keys", "exact")}
_NO_CELL: dict[str, Any] = {"x": [], "y": []}
_NO_BARS: dict[str, Any] = {"start": [], "end": [], "value": []}


def _image(heatmap: Heatmap, exact: bool) -> dict[str, Any]:
    """Return the data of Bokeh's image glyph for a heatmap, anchored at its first query and key."""
    row, row_end, key, key_end = heatmap.window
    down, across = heatmap.values.shape
    # the last bins may have fewer cells but are drawn at full size, so the image may extend beyond the window
    rows, keys = heatmap.bin_size
    if not exact:  # the sampled rows are spread over the whole window
        rows, keys = (row_end - row) / down, (key_end - key) / across
    # a small weight can underflow to 0; only the scores of single cells tell it from a masked one
    masked = heatmap.values <= 0 if heatmap.scores is None else np.isneginf(heatmap.scores)
    values = np.where(masked, np.nan, heatmap.values).astype(np.float32)
    return {
        "image": [values],
        "scores": [np.zeros((0, 0), np.float32) if heatmap.scores is None else heatmap.scores],
        "x": [key],
        "y": [row],
        "dw": [across * keys],
        "dh": [down * rows],
        "rows": [rows],
        "keys": [keys],
        "exact": [exact],
    }


def _bars(values: Float[np.ndarray, " length"], start: int, end: int, reduce: Reduce) -> dict[str, Any]:
    step = -(-(end - start) // MAX_PROFILE_BARS)
    starts = np.arange(start, end, step)
    ends = np.minimum(starts + step, end)
    inside = starts - start
    if reduce == "max":
        pooled = np.maximum.reduceat(values[start:end], inside)
    else:
        pooled = np.add.reduceat(values[start:end], inside) / (ends - starts)
    return {"start": starts, "end": ends, "value": pooled}


def _label_axis(axis: Any, label: Callable[[int], str], start: int, end: int, *, across: bool) -> None:
    # an equal ticker is kept, because Bokeh searches the whole document for models after each new one: 15 ms
    if end - start > MAX_AXIS_TOKENS:
        if not isinstance(axis.ticker, BasicTicker):
            axis.ticker = BasicTicker()
        axis.update(major_label_overrides={}, major_label_orientation=0.0)
        return
    ticks = [index + 0.5 for index in range(start, end)]
    labels = {tick: _axis_label(label(int(tick))) for tick in ticks}
    if isinstance(axis.ticker, FixedTicker):
        axis.ticker.ticks = ticks
    else:
        axis.ticker = FixedTicker(ticks=ticks)
    axis.update(major_label_overrides=labels, major_label_orientation=np.pi / 2 if across else 0.0)


def _axis_label(text: str) -> str | PlainText:
    """Return a token as a label that is not rendered as TeX. Bidi isolates keep right-to-left tokens apart."""
    isolated = f"\u2068{text}\u2069"
    # Bokeh renders strings such as $$x$$ and \\(x\\) as TeX; models are slow, so other tokens stay strings
    return PlainText(text=isolated) if "$$" in text or "\\" in text else isolated


def _figure(name: str, *, x_range: Range1d, y_range: Range1d, **sides: Any) -> Any:
    borders = {side: sides.pop(side, size) for side, size in _BORDERS.items()}
    chart = figure(
        name=name,
        x_range=x_range,
        y_range=y_range,
        tools="",
        toolbar_location=None,
        sizing_mode="stretch_both",
        background_fill_color=None,  # until the page sends its theme; white would show at the edges
        border_fill_color=None,
        **{f"min_border_{side}": size for side, size in borders.items()},
        **sides,
    )
    chart.grid.visible = False
    for axis in (*chart.xaxis, *chart.yaxis):
        axis.update(
            minor_tick_line_color=None,
            major_label_text_font=_FONT,
            major_label_text_font_size="12px",
            axis_label_text_font=_FONT,
            axis_label_text_font_style="normal",
        )
    return chart
