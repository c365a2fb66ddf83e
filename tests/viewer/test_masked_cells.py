"""Tests of masked cells in zoomed windows of long texts, pixel by pixel, in the live page and in reports."""

import contextlib

import pytest
import torch

from clearhead import Causal, Dense, Documents, Padding, Window, report
from support.recordings import decoder
from support.viewer_page import parse_number, showing

LENGTH = 600  # more than the bins of a heatmap
WINDOW = slice(530, 565), slice(525, 570)  # whole bins of a report
MASKS = {
    "causal": Causal(),
    "window": Causal() & Window(20),
    "padding": Padding([LENGTH - 43]),
    "documents": Documents([LENGTH - 53, 53]),
    "dense": Dense(torch.rand(LENGTH, LENGTH, generator=torch.Generator().manual_seed(3)) < 0.5),
}
COLORED = """
    const view = Bokeh.index.find_one(figures.map);
    const { canvas } = view.canvas_view.primary;
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
    copy.drawImage(canvas, 0, 0);
    const [row, rowEnd, key, keyEnd] = windowShown();
    const colored = (query, at) => {
      const [x, y] = [view.frame.x_scale.compute(at + 0.5), view.frame.y_scale.compute(query + 0.5)];
      const [red, green, blue] = copy.getImageData(Math.floor(x), Math.floor(y), 1, 1).data;
      return Math.max(red, green, blue) - Math.min(red, green, blue) > 40; // paper and hatch are gray
    };
    const range = (start, end) => Array.from({ length: end - start }, (_, index) => start + index);
    return range(row, rowEnd).map((query) => range(key, keyEnd).map((at) => colored(query, at)));
"""
DIFFERENCE = """
    const { cellAt } = await import("clearhead/compare_map.js");
    const canvas = document.getElementById("difference-map");
    const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const painted = [];
    for (let pixel = 0; pixel < data.length / 4; pixel++) {
      const [red, green, blue] = data.subarray(4 * pixel, 4 * pixel + 3);
      const middle = { offsetX: (pixel % width) + 0.5, offsetY: Math.floor(pixel / width) + 0.5 };
      const cell = cellAt(canvas, state.compare, middle);
      if (cell && Math.max(red, green, blue) - Math.min(red, green, blue) > 40) painted.push([cell.query, cell.key]);
    }
    return painted;
"""


@pytest.fixture(params=["live", "report"])
def url_of(request, page, tmp_path):
    """Return a function that serves a recording, or writes a report of it, and returns the URL."""
    with contextlib.ExitStack() as served:

        def opened(recording):
            if request.param == "live":
                return served.enter_context(showing(page, recording)).url
            report(recording, tmp_path / "report.html")
            return (tmp_path / "report.html").as_uri()

        yield opened


@pytest.mark.parametrize("mask", MASKS)
def test_no_masked_cell_of_a_zoomed_window_is_painted(page, url_of, mask):
    recording = decoder([f"t{index}" for index in range(LENGTH)], layers=1, mask=MASKS[mask])
    page.open(url_of(recording), "#head=decoder.0.1&rows=530-563&keys=527-568&cell=599-0")
    visible = recording.weights(("decoder", 0, 1)).scores[0, 0, 530:563, 527:568] > -torch.inf
    assert visible.any()
    assert not visible.all()
    assert page.window() == [530, 563, 527, 568]
    assert torch.equal(torch.tensor(page.module_script(COLORED)), visible)


def test_zoomed_report_tells_its_bins_and_fits_its_scales(page, tmp_path):
    """The first key receives most of all attention, so that other bars are flat on the scale of the whole text."""
    recording = decoder([f"t{index}" for index in range(LENGTH)], layers=1)
    report(recording, tmp_path / "report.html")
    weights = recording.weights(("decoder", 0, 1))
    ends = "return [figures.received.y_range.end, figures.entropy.x_range.end]"
    for fragment, rows, keys in (("", slice(0, 600), slice(0, 600)), ("&rows=530-565&keys=525-570", *WINDOW)):
        page.open((tmp_path / "report.html").as_uri(), f"#head=decoder.0.1&scale=linear{fragment}")
        assert page.text("legend-title") == "largest weight of each 5 × 5 bin, linear scale"
        received, entropy = page.module_script(ends)
        assert received == pytest.approx(1.05 * float(weights.received()[0, 0, keys].max()), rel=1e-2)
        assert entropy == pytest.approx(1.05 * float(weights.entropy()[0, 0, rows].max()), rel=1e-2)
        assert parse_number(page.text("high")) == pytest.approx(
            float(weights.dense()[0, 0, rows, keys].max()), rel=5e-2
        )
    assert page.point(540.5, 541.5).startswith("queries 540 to 544 → keys 540 to 544: largest weight ")
    page.click("[name=reduce][value=mean]")
    assert page.text("legend-title") == "mean weight of each 5 × 5 bin, linear scale"


def test_masked_cells_of_a_pinned_head_are_not_painted_in_a_report(page, tmp_path):
    recording = decoder([f"t{index}" for index in range(LENGTH)], layers=1)
    report(recording, tmp_path / "report.html")
    fragment = "#head=decoder.0.1&rows=530-565&keys=525-570&pin=decoder.0.2"
    page.open((tmp_path / "report.html").as_uri(), fragment)
    page.until(lambda: page.module_script("return Boolean(state.compare)"))
    cells = page.module_script("return [...state.compare.cellsOf(state.compare.values)].map(Number.isNaN)")
    masked = recording.weights(("decoder", 0, 2)).scores[0, 0, 530:565, 525:570] == -torch.inf
    assert torch.equal(torch.tensor(cells).view(35, 45), masked)
    painted = page.module_script(DIFFERENCE)
    assert any(key <= query for query, key in painted)
    assert [(query, key) for query, key in painted if key > query] == []
