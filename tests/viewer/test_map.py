"""Tests of the heatmap in a real browser: pointer, wheel, touch, bars, masked cells, keys and its table."""

import math

import pytest
import torch
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from clearhead import Causal, Recording, attention, report
from clearhead.recording import Stack
from clearhead.viewer import _charts
from clearhead.viewer._charts import PALETTES
from support.browser import emulate, resize
from support.recordings import decoder, tokens
from support.viewer_page import parse_number, showing

BOX = "const {left, top, right, bottom} = document.querySelector(arguments[0]).getBoundingClientRect();"
CANVAS = """
    const view = Bokeh.index.find_one(figures[arguments[0]]);
    const { canvas } = view.canvas_view.primary;
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
    copy.drawImage(canvas, 0, 0);
    const read = (x, y, width, height) => {
      const { data } = copy.getImageData(x, y, width, height);
      return Array.from({ length: width * height }, (_, index) => [...data.subarray(4 * index, 4 * index + 4)]);
    };
"""


def is_inside(page, selector):
    """Return whether an element is completely inside the viewport."""
    return page.script(
        BOX + "return left >= 0 && top >= 0 && right <= innerWidth && bottom <= innerHeight && right > left", selector
    )


def click_at(page, x, y):
    actions = ActionChains(page.browser, duration=20)
    actions.w3c_actions.pointer_action.move_to_location(round(x), round(y))
    actions.w3c_actions.pointer_action.click()
    actions.perform()
    page.settle()


def touch(browser, *positions):
    """Put fingers down at the first positions, move them to the others, and lift them."""
    for kind, fingers in [("touchStart", positions[0]), *(("touchMove", fingers) for fingers in positions[1:])]:
        points = [{"x": x, "y": y, "id": index} for index, (x, y) in enumerate(fingers)]
        browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def wait_for_rest(page):
    """Wait until the page has stopped scrolling, which goes on after a finger is lifted."""
    positions = []

    def is_still():
        positions.append(page.script("return scrollY"))
        return len(positions) >= 5 and len(set(positions[-5:])) == 1

    page.until(is_still, 0.1)


def contrast(one, other):
    """Return the WCAG contrast of two colors."""

    def luminance(color):
        parts = [part / 255 for part in color[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def rgb(color):
    return [int(color[start : start + 2], 16) for start in (1, 3, 5)]


def test_tooltip_crosshair_and_readout_are_visible_at_the_pointer(page, small, browser):
    recording, url = small
    weights = recording.weights(("decoder", 1, 2))
    page.open(url, "#head=decoder.1.2")
    assert not page.find("#tip").is_displayed()
    for width, height in ((1280, 720), (1366, 768)):
        resize(browser, width, height)
        page.settle()
        for query, key in ((5, 3), (11, 11), (2, 9)):
            readout = page.point(key + 0.5, query + 0.5)
            assert is_inside(page, "#readout")
            assert is_inside(page, "#tip")
            lines = [line.text for line in page.all("#tip p")]
            assert lines[:2] == [f"query {query} t{query}", f"key {key} t{key}"]
            assert readout.endswith(lines[2])
            weight = float(weights[0, 0, query, key])
            assert parse_number(lines[2]) == pytest.approx(weight, rel=1e-3)
            assert ("masked" in lines[2]) == (weight == 0)
            row, column = page.script(
                "return ['.row', '.column'].map((name) => {"
                " const box = document.querySelector(`.crosshair ${name}`).getBoundingClientRect();"
                " return [(box.left + box.right) / 2, (box.top + box.bottom) / 2]; })"
            )
            x, y = page.screen_position(key + 0.5, query + 0.5)
            assert row[1] == pytest.approx(y, abs=2)
            assert column[0] == pytest.approx(x, abs=2)
    ActionChains(browser).move_to_element(page.find("#heads-heading")).perform()
    assert not page.find("#tip").is_displayed()
    assert not page.find(".crosshair").is_displayed()


def test_axis_labels_and_bars_select_their_token(page, small):
    recording, url = small
    page.open(url, "#head=decoder.1.0&rows=4-10&keys=2-8&cell=6-3")
    left, top = page.script(BOX + "return [left, top]", "#map")
    x, y = page.screen_position(5.5, 8.5)
    left, top = page.script(BOX + "return [left, top]", "#map")
    click_at(page, left + 50, y)  # a label of a query
    page.wait_for(cell="8-3")
    click_at(page, x, top + 40)  # a label of a key
    page.wait_for(cell="8-5")
    assert "key 5 t5" in page.text("tip")
    weights = recording.weights(("decoder", 1, 0))
    x, y = page.screen_position(7.5, 4.5)
    left, right = page.script(BOX + "return [left, right]", "#entropy")
    click_at(page, (left + right) / 2, y)
    page.wait_for(cell="4-5")
    query, _, entropy = page.text("tip").partition("entropy ")
    assert query == "query 4 t4"
    assert parse_number(entropy) == pytest.approx(float(weights.entropy()[0, 0, 4]), rel=1e-3)
    top, bottom = page.script(BOX + "return [top, bottom]", "#received")
    click_at(page, x, (top + bottom) / 2)
    page.wait_for(cell="4-7")
    key, _, received = page.text("tip").partition("received ")
    assert key == "key 7 t7"
    assert parse_number(received) == pytest.approx(float(weights.received()[0, 0, 7]), rel=1e-3)


def test_bars_are_sliders_with_arrow_keys(page, small):
    recording, url = small
    weights = recording.weights(("decoder", 1, 0))
    values = {"entropy": weights.entropy()[0, 0], "received": weights.received()[0, 0]}
    page.open(url, "#head=decoder.1.0&cell=6-3")
    page.find("#chart").send_keys(Keys.TAB)
    for name, token, presses in (
        ("entropy", "query", ((Keys.ARROW_DOWN, "7-3"), (Keys.ARROW_UP, "6-3"), (Keys.END, "11-3"), ("+", "11-3"))),
        ("received", "key", ((Keys.ARROW_RIGHT, "11-4"), (Keys.ARROW_LEFT, "11-3"), (Keys.HOME, "11-0"))),
    ):
        for key, cell in presses:
            focused = page.browser.switch_to.active_element
            assert focused.get_attribute("id") == name
            focused.send_keys(key)
            page.settle()
            page.wait_for(cell=cell)
            index = int(cell.split("-")[name == "received"])
            text = focused.get_attribute("aria-valuetext")
            assert text.startswith(f"{token} {index} t{index}: {name} ")
            assert parse_number(text.split(name)[1]) == pytest.approx(float(values[name][index]), rel=1e-3)
            assert focused.get_attribute("aria-valuenow") == str(index)
            assert page.find("#tip").is_displayed()
        focused.send_keys(Keys.TAB)
    assert page.window() == [6, 12, 0, 6]  # other keys zoom the map, and the window follows the selected cell
    assert not page.find("#tip").is_displayed()


def test_page_scrolls_over_the_map_and_zooms_when_asked(page, small, browser):
    resize(browser, 1280, 500)
    page.open(small[1], "#head=decoder.0.0")

    def scrolled(turn):
        page.screen_position(3.5, 8.5)
        before = page.script("return scrollY")
        turn()
        return page.script("return scrollY") - before

    assert scrolled(lambda: page.wheel(3.5, 8.5, -1, modifier="")) != 0
    assert page.window() == [0, 12, 0, 12]
    assert "Ctrl + scroll zooms" in page.text("wheel-hint")
    page.press(3.5, 8.5)
    assert scrolled(lambda: page.wheel(3.5, 8.5, 1, modifier="")) == 0
    page.until(lambda: page.window()[1] - page.window()[0] < 12)
    page.keys("0", Keys.ESCAPE)
    page.until(lambda: page.window() == [0, 12, 0, 12])
    assert scrolled(lambda: page.wheel(3.5, 8.5, -1, modifier="")) != 0
    assert page.window() == [0, 12, 0, 12]


@pytest.mark.parametrize("source", ["live", "report"])
def test_one_finger_scrolls_the_page_and_two_zoom_the_map(page, small, browser, tmp_path, source):
    url = small[1]
    if source == "report":
        report(small[0], tmp_path / "report.html")
        url = (tmp_path / "report.html").as_uri()
    browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True, "maxTouchPoints": 5})
    try:
        resize(browser, 400, 850)
        page.open(url, "#head=decoder.0.0&cell=6-2")
        x, y = page.screen_position(5.5, 5.5)
        before = page.script("return scrollY")
        touch(browser, *([(x, y - 10 * step)] for step in range(16)))
        page.until(lambda: page.script("return scrollY") > before + 100)
        wait_for_rest(page)
        assert page.window() == [0, 12, 0, 12]
        x, y = page.screen_position(5.5, 5.5)
        before = page.script("return scrollY")
        touch(browser, *([(x - step, y - step), (x + step, y + step)] for step in range(30, 61, 5)))
        page.until(lambda: page.window()[1] - page.window()[0] < 9)
        row, row_end, key, key_end = page.window()
        assert row <= 5 < row_end
        assert key <= 5 < key_end
        assert page.script("return scrollY") == before
        x, y = page.screen_position(row + 2.5, row + 1.5)
        touch(browser, [(x, y)])
        page.wait_for(cell=f"{row + 1}-{row + 2}")
        assert f"query {row + 1} t{row + 1}" in page.text("tip")
        assert is_inside(page, "#tip")
    finally:
        browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})


def test_maps_are_weighted_by_the_values_if_they_are_known(page, small, translator):
    read = "return [...figures.sources[1].data.image[0]].map((value) => Number.isNaN(value) ? 0 : value)"
    page.open(translator.url, "#head=encoder.1.2&cell=3-4")
    plain = torch.tensor(page.module_script(read)).view(17, 17)
    page.click("#weighted")
    assert page.text("legend-title") == "weight × value norm, log scale"
    assert "weight × value norm 0." in page.point(4.5, 3.5)
    factors = torch.tensor(page.module_script(read)).view(17, 17) / plain
    torch.testing.assert_close(factors, factors[:1].expand(17, 17), rtol=1e-3, atol=0)  # one factor for each key
    assert float(factors.max()) == pytest.approx(1, abs=1e-3)
    assert float(factors.min()) < 0.95
    page.wait_for(weighted="values")
    page.open(small[1])
    assert not page.find("#weighted").is_enabled()
    assert "does not have the values" in page.find("#weighted-label").get_attribute("title")


def brightest_edge(page, name):
    """Return the brightest color of the left and top edges of a figure."""
    edges = page.module_script(
        CANVAS + "return [...read(0, 0, 1, canvas.height), ...read(0, 0, canvas.width, 1)]", name
    )
    return max(max(pixel[:3]) for pixel in edges if pixel[3])  # fails if the border is not painted


def test_no_line_of_the_former_theme_stays(page, small, browser):
    page.open(small[1], "#head=decoder.1.2")
    emulate(browser, theme="dark")
    for name in ("map", "entropy", "received"):
        border = f"return figures.{name}.border_fill_color"
        page.until(lambda border=border: page.module_script(border) == "rgb(20, 22, 26)")
    page.settle()
    for name in ("map", "entropy", "received"):
        assert brightest_edge(page, name) < 40


def test_no_line_stays_if_a_figure_is_painted_with_half_of_a_theme(page, small):
    page.open(small[1], "#head=decoder.1.2")
    paint = "for (const frame of [1, 2, 3]) await new Promise(requestAnimationFrame);"
    for name in ("map", "entropy", "received"):
        assert brightest_edge(page, name) > 200
        page.module_script(f"figures.{name}.background_fill_color = 'rgb(20, 22, 26)'; {paint}")
        page.module_script(f"figures.{name}.border_fill_color = 'rgb(20, 22, 26)'; {paint}")
        page.settle()
        assert brightest_edge(page, name) < 40


def test_masked_cells_are_hatched_in_every_palette_and_theme(page, small, browser):
    page.open(small[1], "#head=decoder.0.1")
    region = """
        const middle = [view.frame.x_scale.compute(9.5), view.frame.y_scale.compute(3.5)].map(Math.round);
        return read(middle[0] - 10, middle[1] - 8, 20, 16);
    """
    for theme, paper in (("light", [255, 255, 255]), ("dark", [20, 22, 26])):
        emulate(browser, theme=theme)
        color = f"rgb({', '.join(map(str, paper))})"
        page.until(lambda color=color: page.module_script("return figures.map.background_fill_color") == color)
        for name, palette in PALETTES.items():
            page.choose("palette", name)
            pixels = page.module_script(CANVAS + region, "map")
            assert paper in [pixel[:3] for pixel in pixels]
            assert max(contrast(pixel, paper) for pixel in pixels) > 1.6  # the lines of the hatch
            assert max(contrast(pixel, rgb(palette[0])) for pixel in pixels) > 1.3
            cursor = [rgb(color) for color, _ in _charts._CURSOR_COLORS.values()]
            assert all(max(contrast(rgb(shade), line) for line in cursor) > 3 for shade in palette)
    assert "masked" in page.find(".legend").text
    assert page.text("legend-title") == "weight, log scale"


def test_weights_that_underflow_are_not_masked(page):
    scores = torch.zeros(1, 1, 6, 6)
    scores[..., 2] = -200.0  # a weight of 0 in float32
    query = torch.zeros(1, 1, 6, 2)
    _, weights = attention(query, query, query, bias=scores, mask=Causal(), return_weights="keep_qk")
    assert (weights.dense()[0, 0, :, 2] == 0).sum() > 2
    axis = tokens("abcdef")
    with showing(page, Recording("a model", {"decoder": Stack((weights,), axis, axis)})) as viewer:
        page.open(viewer.url, "#head=decoder.0.0&cell=5-2")
        assert page.text("readout").endswith("weight 0, score −200.0")
        assert page.point(2.5, 4.5).endswith("weight 0, score −200.0")
        assert page.point(4.5, 2.5).endswith("masked: weight 0, score −∞")
        for scale in ("log", "linear"):
            page.click(f"[name=scale][value={scale}]")
            assert page.color(4, 2) == rgb(PALETTES["viridis"][0])
            drawn = page.module_script("return [...figures.sources[1].data.image[0]].map(Number.isNaN)")
            assert drawn == (weights.scores[0, 0] == -math.inf).flatten().tolist()


def test_pooled_bars_say_so_and_small_numbers_are_short(page, monkeypatch):
    monkeypatch.setattr(_charts, "MAX_PROFILE_BARS", 20)
    recording = decoder([f"t{index}" for index in range(60)])
    with showing(page, recording) as viewer:
        page.open(viewer.url, "#head=decoder.0.0")
        titles = "return [...document.querySelectorAll('.side')].map((title) => title.textContent)"
        assert page.script(titles) == ["entropy, nats; largest of 3", "received; largest of 3"]
        page.click("[name=reduce][value=mean]")
        assert page.script(titles) == ["entropy, nats; mean of 3", "received; mean of 3"]
        page.open(viewer.url, "#head=decoder.0.0&rows=30-45&keys=10-25")
        assert page.script(titles) == ["entropy, nats", "received"]
        ticks = "return figures.received.left[0].formatter.doFormat([0, 2e-4, 1.5, 3e-7], {})"
        assert page.module_script(ticks) == ["0", "0.0002", "1.5", "3e-7"]


def test_keys_go_to_the_ends_zoom_one_side_and_open_heads(page, small):
    page.open(small[1], "#head=decoder.1.0&cell=6-2")
    for pressed, cell in (
        ((Keys.END,), "6-11"),
        ((Keys.HOME,), "6-0"),
        ((Keys.CONTROL, Keys.END), "11-11"),
        ((Keys.CONTROL, Keys.HOME), "0-0"),
    ):
        page.keys("".join(pressed))
        page.wait_for(cell=cell)
    page.keys("q")
    page.until(lambda: page.window() == [0, 6, 0, 12])
    page.keys(Keys.SHIFT + "q")
    page.keys("k")
    page.until(lambda: page.window() == [0, 12, 0, 6])
    page.keys(Keys.END)  # the window follows
    page.wait_for(cell="0-11")
    page.until(lambda: page.window() == [0, 12, 6, 12])
    for pressed, head in (
        ("n", "decoder.1.1"),
        ("[", "decoder.1.0"),
        ("p", "decoder.0.3"),
        ("]", "decoder.1.0"),
        ("p", "decoder.0.3"),
    ):
        page.keys(pressed)
        page.wait_for(head=head)
        page.until(lambda: page.window() == [0, 12, 6, 12])
    page.until(lambda: page.text("live-summary") == "Decoder, layer 0, head 3: t0 looks mostly at t0, 100 %")
    page.click("#closer-rows")
    page.until(lambda: page.window() == [0, 6, 6, 12])
    page.browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not page.find("#closer-rows").is_displayed()


def test_table_shows_every_cell_of_the_bundled_sentence(page, translator):
    page.open(translator.url)
    page.click("#window-table summary")
    headings = [cell.text for cell in page.all("#window-cells thead th")]
    assert len(headings) == 17
    assert len(set(headings)) == 17
    assert "home" in headings
    assert headings[-1] == "</s>"
    rows = page.all("#window-cells tbody tr")
    assert len(rows) == 15
    home = headings.index("home")
    cells = [parse_number(row.find_elements(By.CSS_SELECTOR, "td")[home].text) for row in rows]
    assert max(cells) > 0.9
    assert math.isclose(
        sum(parse_number(cell.text) for cell in rows[3].find_elements(By.CSS_SELECTOR, "td")), 1, abs_tol=0.01
    )
