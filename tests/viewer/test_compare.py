"""Tests of a pinned head beside the shown one in a real browser."""

import pytest
import torch
from selenium.webdriver.common.keys import Keys

from support.browser import emulate, resize
from support.recordings import decoder
from support.viewer_page import parse_number, showing, violations

PINNED = "return state.compare && [state.compare.stack, state.compare.layer, state.compare.head].join('.')"
DRAWN = """
const { compare } = state;
return { ...compare, values: [...compare.values], difference: compare.difference && [...compare.difference] };
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
