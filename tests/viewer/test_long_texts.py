"""Tests of the viewer on long texts in a real browser: overviews, windows and token texts."""

import pytest
import torch
from selenium.webdriver.common.by import By

from clearhead.viewer import _heatmap, _thumbnails
from clearhead.viewer.server import _page_session
from support.recordings import decoder
from support.viewer_page import parse_number, showing


@pytest.fixture
def long(page, monkeypatch):
    """Yield the recording and URL of a viewer with limits so low that 512 tokens are a long text."""
    monkeypatch.setattr(_thumbnails, "MAX_EXACT_TOKENS", 200)
    monkeypatch.setattr(_thumbnails, "MAX_THUMBNAIL_BINS", 32)
    monkeypatch.setattr(_heatmap, "MAX_OVERVIEW_BINS", 64)
    monkeypatch.setattr(_page_session, "MAX_PAGE_BINS", 32)
    monkeypatch.setitem(_heatmap.MAX_EXACT_CELLS, "cpu", 128**2)
    monkeypatch.setitem(_heatmap.BAND_CELLS, "cpu", 2**14)
    recording = decoder([f"t{index}" for index in range(512)])
    with showing(page, recording) as viewer:
        yield recording, viewer.url


def sent_heatmap(page, source):
    """Return the heatmap that was sent to the page: the detail (0) or the overview (1)."""
    code = """
        const { image, x, y, keys, rows } = figures.sources[arguments[0]].data;
        const values = [...image[0]].map((value) => (Number.isNaN(value) ? 0 : value));
        return [values, image[0].shape, x[0], y[0], keys[0], rows[0]];
    """
    values, shape, key, row, across, down = page.module_script(code, source)
    return torch.tensor(values).view(*shape), key, row, across, down


def test_overview_window_and_cells_match_the_matrix(page, long):
    recording, url = long
    page.open(url, "#head=decoder.1.0")
    dense = recording.weights(("decoder", 1, 0)).dense()[0, 0]
    assert "Sampled: computed from 128 evenly spaced queries" in page.text("heads-note")
    assert "(sampled)" in page.text("head-facts")
    for source in (0, 1):  # the window is too large to be exact, so both come from the overview
        values, key, row, across, down = sent_heatmap(page, source)
        assert (tuple(values.shape), key, row) == ((32, 32), 0, 0)
        pooled = torch.nn.functional.max_pool2d(dense[None, None], (down, across))[0, 0]
        torch.testing.assert_close(values, pooled, rtol=0, atol=1e-5)
    readout = page.point(104, 408)
    assert readout.startswith("queries 400 to 415 → keys 96 to 111: largest weight ")
    assert parse_number(readout.rpartition(" ")[2]) == pytest.approx(float(dense[400:416, 96:112].max()), rel=1e-3)
    page.open(url, "#head=decoder.1.0&rows=300-420&keys=200-310")
    values, key, row, across, down = sent_heatmap(page, 0)
    assert (across, down) == (4, 4)
    exact = torch.nn.functional.max_pool2d(
        dense[None, None, row : row + 4 * values.shape[0], key : key + 4 * values.shape[1]], 4
    )
    torch.testing.assert_close(values, exact[0, 0], rtol=0, atol=1e-5)
    page.open(url, "#head=decoder.1.0&rows=300-330&keys=200-225")
    values, key, row, across, down = sent_heatmap(page, 0)
    assert torch.equal(values, dense[300:330, 200:225])
    assert (across, down, key, row) == (1, 1, 200, 300)
    assert page.module_script("return state.tokens.rows") == [f"t{index}" for index in range(300, 330)]


def test_table_ranges_do_not_overlap(page, long):
    recording, url = long
    page.open(url, "#head=decoder.1.0&rows=5-505&keys=3-509")
    page.click("#window-table summary")
    dense = recording.weights(("decoder", 1, 0)).dense()[0, 0]
    rows = [
        [cell.text for cell in row.find_elements(By.CSS_SELECTOR, "th, td")] for row in page.all("#window-table tr")
    ]

    def ends(text):
        start, _, last = text.partition(" to ")
        return int(start), int(last) + 1

    columns = [ends(text) for text in rows[0][1:]]
    assert len(columns) == 32  # the bins of the page, all of which fit into the table
    for heading, *cells in rows[1:]:
        row, row_end = ends(heading)
        expected = [float(dense[row:row_end, key:key_end].max()) for key, key_end in columns]
        assert [parse_number(cell) for cell in cells] == pytest.approx(expected, rel=1e-2, abs=1e-6)


def test_linear_color_scale_ends_at_the_largest_weight_of_the_window(page, long):
    recording, url = long
    page.open(url, "#head=decoder.1.0&rows=300-330&keys=200-225")
    page.click("[name=scale][value=linear]")
    largest = float(recording.weights(("decoder", 1, 0)).dense()[0, 0, 300:330, 200:225].max())
    assert parse_number(page.text("high")) == pytest.approx(largest, rel=0.05)


def test_page_receives_only_tokens_of_the_window(page, long):
    page.open(long[1], "#head=decoder.1.0&rows=300-330&keys=200-225")
    texts = page.module_script(
        """
        const texts = [...Bokeh.documents[0]._all_models.values()].filter((model) => model.type === "PlainText");
        return [...state.tokens.rows, ...state.tokens.keys, ...texts.map((model) => model.text)];
        """
    )
    indices = {int(text.strip("\u2068\u2069")[1:]) for text in texts}
    assert indices <= {*range(300, 330), *range(200, 225)}


def test_mean_heatmap_and_profiles_match_the_matrix(page, long):
    recording, url = long
    page.open(url, "#head=decoder.0.2")
    largest, *_ = sent_heatmap(page, 1)
    page.click("[name=reduce][value=mean]")
    page.until(lambda: not torch.equal(sent_heatmap(page, 1)[0], largest))
    page.settle()
    weights = recording.weights(("decoder", 0, 2))
    values, *_, down = sent_heatmap(page, 1)
    pooled = torch.nn.functional.avg_pool2d(weights.dense()[0, 0][None, None], down)[0, 0]
    torch.testing.assert_close(values, pooled, rtol=0, atol=1e-5)
    bars = page.script(
        """
        const profile = (name) => Bokeh.documents[0].get_model_by_name(name).renderers[0].data_source.data;
        return ["entropy", "received"].map((name) => [...profile(name).value]);
        """
    )
    assert bars[0] == pytest.approx(weights.entropy()[0, 0].tolist(), abs=1e-4)
    assert bars[1] == pytest.approx(weights.received()[0, 0].tolist(), abs=1e-4)


def test_strip_shows_the_keys_of_the_window(page, long):
    recording, url = long
    page.open(url, "#head=decoder.0.2&rows=300-330&keys=290-320&cell=310-300")
    words = page.all("#strip button.tok")
    assert [word.text for word in words] == [f"t{index}" for index in range(290, 320)]
    weight = parse_number(words[5].get_attribute("title").partition("weight")[2])
    assert weight == pytest.approx(float(recording.weights(("decoder", 0, 2))[0, 0, 310, 295]), rel=1e-2)
    words[7].click()
    page.settle()
    assert page.fragment["cell"] == "297-297"
