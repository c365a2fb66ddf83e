"""Tests of attention over a picture and along a sound, in a real browser: live pages and reports."""

import numpy as np
import pytest
import torch
from bokeh.palettes import Greys256, Viridis256
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys

from clearhead import Recording, report
from clearhead.recording import (
    Media,
    Patches,
    Picture,
    Stack,
    Timestamps,
    Tokens,
    frame_tokens,
    patch_tokens,
    sound_of,
)
from support.browser import requested, resize
from support.crafted_recordings import looking_at, weights_of
from support.viewer_page import showing, violations

ROWS, COLUMNS, HOSTILE = 2, 3, "<img src=x>"
KEYS = 2 + ROWS * COLUMNS


def picture_recording():
    """Return a recording whose query i attends to key i + 1, with patches after two special tokens."""
    tokens = patch_tokens(ROWS, COLUMNS, special=["cls", HOSTILE], picture=0)
    shifted = 0.9 * looking_at([(index + 1) % KEYS for index in range(KEYS)]) + 0.1 * looking_at([0] * KEYS)
    pixels = torch.arange(4 * 6 * 3, dtype=torch.uint8).view(4, 6, 3)
    weights = weights_of(torch.stack([shifted, looking_at([3] * KEYS)]))
    return Recording("a vit", {"encoder": Stack((weights,), tokens, tokens)}, media=Media((Picture(pixels),)))


def sound_recording():
    """Return a recording of a transcript of three tokens, each of which attends to one of 10 frames."""
    frames = frame_tokens(10, 0.5, sound=0)
    spoken = (Timestamps(0, (0.0, 1.5, 3.0), 0),)
    words = Tokens(("<s>", " My", " mother"), (True, False, False), (None, 0, 1), spoken)
    samples = torch.sin(torch.arange(4000) / 7)
    stacks = {"cross": Stack((weights_of(looking_at([0, 3, 6], 10)[None]),), words, frames)}
    return Recording("a whisper", stacks, media=Media(sounds=(sound_of(samples, 1000),)))


def word_recording():
    """Return a recording of pixels that attend to words, without a picture, as in a UNet."""
    words = Tokens(("a", "cat"), (False, False), (0, 1))
    stack = Stack((weights_of(looking_at([0, 1, 0, 0], 2)[None]),), patch_tokens(2, 2), words)
    return Recording("a unet", {"attn2": stack})


@pytest.fixture(params=["live", "report"])
def shown(request, page, tmp_path):
    """Return a function that opens a recording, in a live page or in a report."""
    with_viewers = []

    def opened(recording, fragment=""):
        if request.param == "report":
            report(recording, tmp_path / "report.html")
            return page.open(f"file://{tmp_path / 'report.html'}", fragment)
        viewer = showing(page, recording)
        with_viewers.append(viewer)
        return page.open(viewer.__enter__().url, fragment)

    yield opened
    for viewer in with_viewers:
        viewer.__exit__(None, None, None)


def heat(page):
    """Return the pixels of the weights over the first picture, [rows, columns, 4]."""
    code = """
        const canvas = document.querySelector(".board canvas");
        const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
        copy.drawImage(canvas, 0, 0);
        const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
        return [canvas.height, canvas.width, [...data]];
    """
    height, width, values = page.script(code)
    return np.array(values).reshape(height, width, 4)


def hover(page, selector, x, y):
    """Move the mouse to a point of an element, from 0 to 1 in each direction."""
    target = page.find(selector)
    page.script("arguments[0].scrollIntoView({block: 'center'})", target)
    width, height = target.size["width"], target.size["height"]
    ActionChains(page.browser, duration=20).move_to_element_with_offset(
        target, round((x - 0.5) * width), round((y - 0.5) * height)
    ).perform()
    page.settle()


def test_map_of_a_patch_lies_over_the_picture(shown, page, browser):
    shown(picture_recording(), "#head=encoder.0.0&cell=2-3")  # from patch 0,0 to patch 0,1
    assert page.text("words-heading") == "Picture"
    image = page.find(".board img")
    assert image.get_attribute("src").startswith("data:image/png;base64,")
    assert (image.get_property("naturalWidth"), image.get_property("naturalHeight")) == (6, 4)
    assert page.text("media-readout") == (
        "patch 0,0 attends most to patch 0,1, 0.900; the picture receives 0.90 of its attention"
    )
    yellow = [int(Viridis256[-1][start : start + 2], 16) for start in (1, 3, 5)]
    colors = heat(page)
    assert colors[0, 1].tolist()[3] == round(255 * 0.85)
    assert np.abs(colors[0, 1, :3] - yellow).max() <= 2  # premultiplied alpha loses a digit
    assert (np.delete(colors.reshape(-1, 4), 1, axis=0)[:, 3] == 0).all()

    # the pointer shows another patch, and leaving the picture shows the selected one again
    hover(page, ".board", 0.5 / 3, 0.75)
    assert page.text("media-readout").startswith("patch 1,0 attends most to patch 1,1, 0.900")
    assert heat(page)[1, 1, 3] == round(255 * 0.85)
    assert page.fragment["cell"] == "2-3"
    hover(page, "#words-heading", 0.5, 0.5)
    assert page.text("media-readout").startswith("patch 0,0 ")

    # keys move between patches, and select them in the matrix too
    page.find(".board").send_keys(Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    page.settle()
    assert page.text("media-live").startswith("patch 1,1 attends most to patch 1,2, 0.900")
    assert page.fragment["cell"] == "6-3"
    spot = page.find(".board .spot").rect
    board = page.find(".board").rect
    assert spot["x"] == pytest.approx(board["x"] + board["width"] / 3, abs=3)

    # class token and registers are apart; their names are text
    chips = page.all("#media-tokens button")
    assert [chip.text for chip in chips] == ["cls", HOSTILE]
    chips[1].click()
    page.settle()
    assert page.text("media-readout").startswith(f"{HOSTILE} attends most to patch 0,0")
    assert page.fragment["cell"] == "1-3"
    assert chips[1].get_attribute("aria-pressed") == "true"
    chips[1].send_keys(Keys.ARROW_LEFT)
    assert page.script("return document.activeElement.textContent") == "cls"

    # another head and another palette
    page.module_script("ask('go', { head: 'encoder.0.1' })")
    page.settle()
    assert page.text("media-readout") == (
        f"{HOSTILE} attends most to patch 0,1, 1.00; the picture receives 1.00 of its attention"
    )
    page.choose("palette", "greys")
    shades = [[int(color[start : start + 2], 16) for start in (1, 3, 5)] for color in (Greys256[0], Greys256[-1])]
    assert min(np.abs(heat(page)[0, 1, :3] - shade).max() for shade in shades) <= 2
    local = ("data:", "file:", "http://127.0.0.1", "blob:", "about:")
    assert all(address.startswith(local) for address in requested(browser))
    resize(browser, 400)
    assert page.find(".board").rect["width"] <= 400
    assert violations(browser) == []
    resize(browser, 1280)


def test_weights_stand_above_a_sound(shown, page, browser):
    shown(sound_recording(), "#head=cross.0.0&cell=1-3")
    assert page.text("words-heading") == "Sound"
    assert page.text("media-readout") == " My attends most to 1.50 s, 1.00; the sound receives 1.00 of its attention"
    assert [tick.text for tick in page.all(".sound .tick")] == ["0 s", "1 s", "2 s", "3 s", "4 s", "5 s"]
    bars = page.find(".sound .weights").get_attribute("d")
    assert "L300.0 0.0 L400.0 0.0" in bars  # full height from 1.5 to 2 seconds
    assert bars.count(" 0.0") == 2
    assert float(page.find(".sound .spoken").get_attribute("x1")) == 300  # the token is spoken at 1.5 s
    ends = page.script("return document.querySelector('.sound .wave').getBBox().width")
    assert ends == pytest.approx(800, abs=2)  # a sound of 4 seconds of 5
    page.all("#media-tokens button")[2].click()
    page.settle()
    assert page.text("media-readout").startswith(" mother attends most to 3.00 s")
    hover(page, ".sound", 0.25, 0.3)
    assert page.text("media-readout").endswith("· at the pointer 1.00 s: 0")
    page.find(".sound").send_keys(Keys.END)
    page.settle()
    assert page.fragment["cell"] == "2-9"
    assert violations(browser) == []


def test_words_are_mapped_to_pixels(shown, page):
    shown(word_recording(), "#head=attn2.0.0&cell=0-1")
    assert page.text("media-readout") == "cat receives most from patch 0,1, 1.00"
    assert heat(page)[:, :, 3].tolist() == [[0, round(255 * 0.85)], [0, 0]]
    hover(page, "#media-tokens button", 0.5, 0.5)
    assert page.text("media-readout").startswith("a receives most from patch 0,0")
    assert not page.all(".board img")


def test_blocks_of_patches_are_drawn_at_their_position(page):
    code = "return (await import('clearhead/patch_board.js')).patchPositions(arguments[0])"
    with showing(page, word_recording()) as viewer:
        page.open(viewer.url)
        for region in (Patches(3, 4, 6, block=2), Patches(1, 2, 3)):
            fields = {"start": region.start, "rows": region.rows, "columns": region.columns, "block": region.block}
            assert page.module_script(code, fields) == region.positions()


def test_texts_have_no_picture(page, translator):
    page.open(translator.url)
    assert page.text("words-heading") == "Words"
    assert not page.find("#media").is_displayed()
    assert page.find("#lines").is_displayed()
