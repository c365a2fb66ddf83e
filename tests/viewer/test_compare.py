"""Tests of a pinned head next to the shown one in a real browser."""

import pytest
import torch
from selenium.webdriver.common.keys import Keys

from clearhead import report
from clearhead.viewer import _heatmap
from clearhead.viewer.server._panels import compare
from support.browser import emulate, resize
from support.recordings import decoder, translation
from support.viewer_page import PLAIN_TOKENS, parse_number, showing, violations

PINNED = "return state.compare && [state.compare.stack, state.compare.layer, state.compare.head].join('.')"
DRAWN = """
const { compare } = state;
return { ...compare, values: [...compare.values], difference: compare.difference && [...compare.difference] };
"""
BOX = "const { left, top } = document.querySelector(arguments[0]).getBoundingClientRect(); return [left, top]"
ROWS = """
const view = Bokeh.index.find_one(figures.map);
const pinned = document.getElementById("pinned-map");
const pen = new OffscreenCanvas(1, pinned.height).getContext("2d", { willReadFrequently: true });
pen.drawImage(pinned, 7 - pinned.width, 0); // a column next to a label
const { data } = pen.getImageData(0, 0, 1, pinned.height);
const filled = Array.from({ length: pinned.height }, (_, y) => data[4 * y + 3] > 0);
const tops = [view.canvas_view.el, pinned].map((node) => node.getBoundingClientRect().top);
const edges = [view.frame.y_scale.compute(0), view.frame.y_scale.compute(12)];
return [edges.map((edge) => tops[0] + edge), [tops[1] + filled.indexOf(true), tops[1] + filled.lastIndexOf(true) + 1]];
"""


def compared(page, head: str) -> dict:
    """Wait until a pinned head is drawn and return what the page received."""
    page.until(lambda: page.module_script(PINNED) == head)
    page.settle()
    return page.module_script(DRAWN)


def assert_equal(got, expected) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)


def test_pinned_head_is_compared_with_another(page, small, browser):
    recording, url = small
    page.open(url, "#head=decoder.1.2&cell=7-3")
    page.click("#pin")
    assert page.fragment["pin"] == "decoder.1.2"
    assert "Open another head or text" in page.text("compare")
    assert not page.find("#difference").is_displayed()
    page.click("[data-head='decoder.0.3']")
    page.until(lambda: page.find("#difference").is_displayed())
    shown, pinned = (recording.weights(("decoder", *head)).dense()[0, 0] for head in ((0, 3), (1, 2)))
    drawn = compared(page, "decoder.1.2")
    assert_equal(torch.tensor(drawn["values"]).view(12, 12), pinned)
    assert_equal(torch.tensor(drawn["difference"]).view(12, 12), shown - pinned)
    weights = page.text("compare-readout").split(": ")[1].split(", ")
    expected = [float(shown[7, 3]), float(pinned[7, 3]), float(shown[7, 3] - pinned[7, 3])]
    assert [parse_number(weight) for weight in weights] == pytest.approx(expected, rel=1e-3)
    assert page.text("compare-readout").startswith("t7 → t3: shown ")

    for width, is_beside in ((1280, True), (1100, True), (1099, False)):
        resize(browser, width, 720)
        page.settle()
        (x, y), (pinned_x, pinned_y) = (page.script(BOX, selector) for selector in ("#map", "#pinned-map"))
        assert (pinned_x > x + 100) == is_beside
        if is_beside:
            assert pinned_y == pytest.approx(y, abs=1)
            rows = page.module_script(ROWS)  # the rows of both maps are in line
            assert rows[1] == pytest.approx(rows[0], abs=2)
        else:
            assert pinned_y > y + 300
        assert page.script("return document.documentElement.scrollWidth") <= width
    resize(browser, 1280, 720)
    page.settle()
    page.point(4.5, 9.5)
    assert page.text("compare-readout").startswith("t9 → t4: shown ")

    page.find("#difference-map").send_keys(Keys.ARROW_DOWN)  # the cursor is linked
    page.settle()
    assert page.fragment["cell"] == "8-3"
    page.until(lambda: page.text("compare-readout").startswith("t8 → t3: "))
    page.find("#pinned-map").send_keys("+")
    page.settle()
    row, row_end, key, key_end = page.window()
    assert row_end - row == 6
    drawn = compared(page, "decoder.1.2")
    assert drawn["window"] == [row, row_end, key, key_end]
    assert_equal(torch.tensor(drawn["values"]).view(6, 6), pinned[row:row_end, key:key_end])

    address = browser.current_url
    browser.refresh()
    page.until(lambda: page.text("readout"))
    drawn = compared(page, "decoder.1.2")
    assert_equal(torch.tensor(drawn["values"]).view(6, 6), pinned[row:row_end, key:key_end])
    assert browser.current_url == address
    emulate(browser, theme="dark")
    resize(browser, 400)
    page.settle()
    assert page.script("return document.documentElement.scrollWidth") <= 400
    assert violations(browser) == []
    page.click("#unpin")
    assert "pin" not in page.fragment
    assert not page.find("#compare").is_displayed()
    assert page.script("return document.activeElement.id") == "pin"


def test_long_texts_are_compared_in_bins(page):
    recording = decoder([f"w{index}" for index in range(600)], layers=1, heads=2)
    with showing(page, recording) as viewer:
        page.open(viewer.url, "#head=decoder.0.1&pin=decoder.0.0")
        drawn = compared(page, "decoder.0.0")
        assert drawn["bins"] == [3, 3]
        shown, pinned = (
            torch.nn.functional.max_pool2d(recording.weights(("decoder", 0, head)).dense()[0], 3)[0] for head in (1, 0)
        )
        torch.testing.assert_close(torch.tensor(drawn["values"]).view(200, 200), pinned, rtol=0, atol=1e-6)
        torch.testing.assert_close(torch.tensor(drawn["difference"]).view(200, 200), shown - pinned, rtol=0, atol=2e-6)


def test_recordings_on_two_devices_are_compared_in_the_same_bins(page, monkeypatch):
    """The largest exact window depends on the device, here simulated by the dtype."""
    texts = [f"w{index}" for index in range(300)]
    shown, other = decoder(texts, layers=1), decoder(texts, layers=1, sharpness=1.0, dtype=torch.float64)
    monkeypatch.setattr(compare, "is_exact", lambda weights, window: weights.dtype == torch.float64)
    monkeypatch.setattr(_heatmap, "MAX_OVERVIEW_BINS", 100)
    with showing(page, shown, compare=other) as viewer:
        page.open(viewer.url, "#head=decoder.0.1&rows=7-300&keys=7-300")
        drawn = compared(page, "decoder.0.1")
    one, two = (
        torch.nn.functional.max_pool2d(recording.weights(("decoder", 0, 1)).dense().float()[0], 3)[0][2:, 2:]
        for recording in (shown, other)
    )
    torch.testing.assert_close(torch.tensor(drawn["difference"]).view(98, 98), one - two, rtol=0, atol=2e-6)


def test_head_of_another_text_stays_pinned(page, browser):
    with showing(page, "en-ja", text=["The old dog barked.", "The old cat barked."]) as viewer:
        page.open(viewer.url, "#head=encoder.1.3&pin=%40%40")
        assert "pin" not in page.fragment  # invalid
        page.click("#pin")
        page.choose("given", "1")
        page.until(lambda: "of “The old dog barked.”" in page.text("compare-heading"))
        assert page.fragment["pin"] == "encoder.1.3@0"
        address = browser.current_url
        browser.refresh()
        page.until(lambda: "of “The old dog barked.”" in page.text("compare-heading"))
        page.settle()
        assert browser.current_url == address
        page.click("[data-head='cross.0.0']")
        page.until(lambda: "so they have no difference" in page.text("compare-note"))
        assert not page.find("#difference").is_displayed()
        assert page.find("#pinned-map").is_displayed()


def test_report_compares_its_heads(page, tmp_path):
    recording = translation(list("abc"), list("defg"))
    report(recording, tmp_path / "report.html")
    page.open((tmp_path / "report.html").as_uri(), "#head=decoder.0.1&cell=2-1&pin=decoder.0.3")
    drawn = compared(page, "decoder.0.3")
    shown, pinned = (recording.weights(("decoder", 0, head)).dense()[0, 0] for head in (1, 3))
    difference = torch.tensor(drawn["difference"]).view(4, 4)
    torch.testing.assert_close(difference, shown - pinned, rtol=0, atol=1e-3)
    assert page.text("compare-readout").startswith("f → e: shown ")
    page.click("[data-head='cross.0.0']")
    page.until(lambda: "4 × 3 weights and the pinned one 4 × 4, so they have no difference" in page.text("compare"))
    page.click("#unpin")
    assert not page.find("#compare").is_displayed()


def test_head_of_a_recording_follows_the_shown_head(page, tmp_path):
    shown, other = decoder(PLAIN_TOKENS, sharpness=1.0), decoder(PLAIN_TOKENS, sharpness=3.0)
    other.save(tmp_path / "other.safetensors")
    with showing(page, shown, compare=tmp_path / "other.safetensors") as viewer:
        page.open(viewer.url, "#head=decoder.1.2")
        for layer, head in ((1, 2), (0, 1)):
            page.click(f"[data-head='decoder.{layer}.{head}']")
            drawn = compared(page, f"decoder.{layer}.{head}")
            one, two = (recording.weights(("decoder", layer, head)).dense()[0, 0] for recording in (shown, other))
            assert_equal(torch.tensor(drawn["values"]).view(12, 12), two)
            assert_equal(torch.tensor(drawn["difference"]).view(12, 12), one - two)
        assert page.fragment["pin"] == "same@recording"
        assert page.text("compare-heading").endswith("of “recording of a model”")
        page.click("#unpin")
        assert not page.find("#compare").is_displayed()


def test_report_ignores_a_pinned_head_of_another_text(page, tmp_path):
    path = tmp_path / "report.html"
    report(decoder(PLAIN_TOKENS), path, view="head=decoder.0.3&pin=decoder.1.2%40text%3Aother")
    page.open(path.as_uri())
    assert not page.find("#compare").is_displayed()
    assert "pin" not in page.fragment
