"""Tests of the thumbnails of all heads in a real browser: pixels, captions, labels, order, keyboard, small screens."""

import pytest
import torch
from bokeh.palettes import Viridis256
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys

from clearhead import Causal
from clearhead.analysis.roles import Roles
from clearhead.analysis.statistics import HeadStatistics
from support.browser import emulate, resize
from support.crafted_recordings import looking_at, recording, tokens, weights_of
from support.recordings import decoder
from support.viewer_page import PLAIN_TOKENS, parse_number, showing, violations

LENGTH = 300  # tokens; the thumbnails have 128 bins
MAX_TAB_STOPS = 38  # without the words; a region is one stop, and each control above it


@pytest.fixture(scope="module")
def sinks():
    """Return a recording whose head 0 attends to the first token only, head 1 to all earlier tokens."""
    uniform = torch.ones(LENGTH, LENGTH).tril()
    heads = torch.stack([looking_at([0] * LENGTH) + 1e-6, uniform.double()])
    return recording(
        weights_of(heads, mask=Causal()), texts=tokens([f"t{index}" for index in range(LENGTH)]), name="decoder"
    )


def pixels(page, head):
    """Return the colors of a thumbnail [rows, columns, 3], and its size on the screen in device pixels."""
    data, shape, drawn = page.script(
        """
        const canvas = document.querySelector(`[data-head="${arguments[0]}"] canvas`);
        const box = canvas.getBoundingClientRect();
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        const shape = [canvas.height, canvas.width];
        return [[...data], shape, [box.height, box.width].map((size) => size * devicePixelRatio)];
        """,
        head,
    )
    return torch.tensor(data).view(*shape, 4)[..., :3], drawn


def color(page, value):
    """Return a CSS color as the page draws it."""
    text = page.script(
        "document.body.style.outlineColor = arguments[0]; const color = getComputedStyle(document.body).outlineColor;"
        " document.body.style.outlineColor = ''; return color",
        value,
    )
    return [int(part) for part in text.removeprefix("rgb(").removesuffix(")").split(",")]


def test_sinks_and_masked_cells_are_visible_at_every_pixel_ratio(page, sinks, browser):
    yellow = color_of(Viridis256[-1])
    with showing(page, sinks) as viewer:
        for ratio in (1, 2):
            sizes = {"width": 1280, "height": 900, "deviceScaleFactor": ratio, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", sizes)
            page.open(viewer.url)
            drawn, on_screen = pixels(page, "decoder.0.0")
            assert list(drawn.shape[:2]) == pytest.approx(
                on_screen, abs=1
            )  # nothing is dropped between canvas and screen
            assert (drawn[:, 0] == torch.tensor(yellow)).all()
            uniform, _ = pixels(page, "decoder.0.1")
            masked = torch.tensor(color(page, "var(--masked)"))
            assert (uniform[0, -1] == masked).all()
            assert (drawn[0, -1] == masked).all()
            assert not (drawn[-1, -1] == masked).all()  # a small weight has the darkest color
        page.click("#hide")
        page.until(lambda: (pixels(page, "decoder.0.0")[0][5:, 0] != torch.tensor(yellow)).any(dim=-1).all())
        assert "sink is hidden" in page.text("heads-note")
        assert "t0" not in page.text("from").split("layer")[1]


def color_of(text):
    return [int(text[start : start + 2], 16) for start in (1, 3, 5)]


def test_labels_are_chips_most_specific_first(page, browser):
    names = {("decoder", 1, 3): HeadStatistics(9, keys=20, sink=0.9, induction=0.5, spread=0.05)}
    with showing(page, decoder(PLAIN_TOKENS), roles=Roles("a model", names)) as viewer:
        for width in (1280, 400):
            resize(browser, width)
            page.open(viewer.url)
            chips = page.all("[data-head='decoder.1.3'] .chip")
            assert [chip.get_attribute("title") for chip in chips] == ["induction", "first token", "sharp"]
            assert chips[0].text.startswith("induct")
            box = page.find("[data-head='decoder.1.3']").rect
            for chip in chips:
                assert box["x"] <= chip.rect["x"]
                assert chip.rect["x"] + chip.rect["width"] <= box["x"] + box["width"] + 1
                assert page.script("return arguments[0].scrollWidth <= arguments[0].clientWidth + 1", chip)
        assert page.text("labels-note").startswith("7 of 8 heads have no label: a label needs")
        page.choose("filter", "label:first token")
        assert [thumb.get_attribute("data-head") for thumb in page.all(".thumb")] == ["decoder.1.3"]


def test_sorted_heads_have_distinct_names_and_units(page, translator):
    page.open(translator.url)
    page.choose("sort", "sharp")
    names = [name.text for name in page.all(".thumb .name")]
    assert len(set(names)) == len(names) == 96
    assert {"encoder 0.3", "decoder 0.3", "cross 0.3"} <= set(names)
    values = [value.text for value in page.all(".thumb .value")]
    assert all(value.endswith(" nats") for value in values)
    assert [parse_number(value) for value in values] == sorted(parse_number(value) for value in values)
    page.choose("sort", "most:previous")
    values = [value.text for value in page.all(".thumb .value")]
    shares = [parse_number(value) for value in values if value]
    assert len(shares) == 64  # cross-attention has no previous position
    assert shares == sorted(shares, reverse=True)
    assert all(not value for value in values[64:])


def test_captions_keep_their_number_on_a_small_screen(page, translator, browser):
    resize(browser, 400, 850)
    page.open(translator.url)
    assert page.script("return document.documentElement.scrollWidth") <= 400
    cut = page.script(
        "return [...document.querySelectorAll('.thumb .name, .thumb .value')].filter((part) => {"
        " const [box, thumb] = [part.getBoundingClientRect(), part.closest('.thumb').getBoundingClientRect()];"
        " return !part.textContent || box.left < thumb.left || box.right > thumb.right + 1; }).length"
    )
    assert cut == 0
    pane, grid = page.script(
        "const heads = document.getElementById('heads'); return [heads.clientHeight, heads.scrollHeight]"
    )
    assert pane == grid  # no scroll box, which would hide decoder and cross-attention
    page.find("[data-head='decoder.1.2']").click()
    page.until(lambda: page.text("head-heading") == "Decoder, layer 1, head 2")
    page.until(lambda: -1 <= page.script("return document.getElementById('head').getBoundingClientRect().top") < 850)


def focused(page):
    return page.script("return document.activeElement.dataset.head ?? document.activeElement.id")


def press(page, *keys):
    for key in keys:
        ActionChains(page.browser).send_keys(key).perform()
    return focused(page)


def test_keyboard_reaches_everything_in_few_stops(page, small, browser):
    page.open(small[1], "#head=decoder.0.2")
    press(page, Keys.TAB)
    assert browser.switch_to.active_element.text == "Skip to the words"
    press(page, Keys.TAB, Keys.TAB)
    assert press(page, Keys.ENTER) == "head"
    assert "head=decoder.0.2" in browser.current_url
    page.script("document.getElementById('filter').focus()")
    assert press(page, Keys.TAB) == "decoder.0.2"
    assert press(page, Keys.ARROW_RIGHT) == "decoder.0.3"
    assert press(page, Keys.ARROW_DOWN) == "decoder.1.3"
    assert press(page, Keys.HOME) == "decoder.1.0"
    assert press(page, Keys.ARROW_UP) == "decoder.0.0"
    assert press(page, Keys.END) == "decoder.0.3"
    ActionChains(browser).key_down(Keys.CONTROL).send_keys(Keys.END).key_up(Keys.CONTROL).perform()
    assert focused(page) == "decoder.1.3"
    press(page, Keys.ENTER)
    page.until(lambda: page.text("head-heading") == "Decoder, layer 1, head 3")
    page.settle()
    assert focused(page) == "decoder.1.3"
    stops = []
    page.script("document.activeElement.blur(); document.body.tabIndex = -1; document.body.focus()")
    while len(stops) < 100:
        press(page, Keys.TAB)
        stop = page.script(
            "let stop = document.activeElement; if (stop === document.body) return null;"
            " while (stop.shadowRoot?.activeElement) stop = stop.shadowRoot.activeElement;"
            " if (stop.closest('#words')) return ['words'];"
            " const name = stop.getAttribute('aria-label') || stop.textContent || stop.labels?.length || stop.title;"
            " return [stop.outerHTML.slice(0, 80), name]"
        )
        if stop is None:
            break
        stops.append(stop)
    others = [stop for stop in stops if stop != ["words"]]
    assert len(others) <= MAX_TAB_STOPS, others
    assert all(name for _, name in others), others


@pytest.mark.parametrize(("width", "theme"), [(1280, "dark"), (400, "light"), (400, "dark")])
def test_page_has_no_accessibility_violations(page, translator, browser, theme, width):
    resize(browser, width)
    emulate(browser, theme=theme)
    page.open(translator.url)
    assert violations(browser) == []
