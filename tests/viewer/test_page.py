"""Tests of the viewer in a real browser: thumbnails, the heatmap of one head, addresses, settings."""

import math

import pytest
import torch
from bokeh.palettes import Greys256, Viridis256
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from clearhead.analysis.roles import Roles
from clearhead.analysis.statistics import HeadStatistics
from clearhead.recording.example_texts import EXAMPLE_SENTENCE
from support.browser import complaints, emulate, requested, resize
from support.recordings import decoder
from support.viewer_page import PLAIN_TOKENS, parse_number, showing, violations


def test_first_page_loads_without_a_network(page, translator, browser):
    page.open(translator.url)
    assert browser.title == "clearhead: en-ja"
    assert "code" not in browser.current_url
    assert page.find("#text").get_attribute("value") == EXAMPLE_SENTENCE
    assert len(page.all(".thumb")) == 3 * 4 * 8
    assert page.text("head-heading").startswith("Cross-attention, layer ")
    assert "15 × 17 tokens · entropy" in page.text("head-facts")
    assert "first token" in {label.text for label in page.all("#filter option")}
    assert page.fragment["head"].startswith("cross.")
    addresses = requested(browser) - {"about:blank"}
    assert addresses
    assert all(address.startswith((f"http://127.0.0.1:{translator.port}/", "data:", "blob:")) for address in addresses)
    assert len([address for address in addresses if "/static/js/" in address]) == 1  # Bokeh without widgets and MathJax


def test_redirect_file_opens_the_page_for_all_tabs_and_reloads(page, browser, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    with showing(page, decoder(PLAIN_TOKENS)) as viewer:
        assert viewer.open()
        page.open(opened[0])
        assert page.fragment["head"].startswith("decoder.")
        assert list(tmp_path.iterdir()) == []
        browser.refresh()
        page.until(lambda: page.text("readout"))
        address, first = browser.current_url, browser.current_window_handle
        browser.switch_to.new_window("tab")
        page.open(address)
        browser.get("about:blank")
        browser.close()
        browser.switch_to.window(first)
        browser.delete_all_cookies()  # like another browser
        browser.get("about:blank")
        browser.get(address)
        assert "This address needs a link" in page.find("main").text
        complaints(browser)  # discards the logged 403


def test_thumbnails_are_drawn(page, small):
    recording, url = small
    page.open(url)
    pixels = page.script(
        "return [...document.querySelectorAll('.thumb canvas')].map((canvas) =>"
        " [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data])"
    )
    assert len(pixels) == len(list(recording.heads())) == 8
    size = int((len(pixels[5]) / 4) ** 0.5)
    centers = ((torch.arange(12) + 0.5) * size / 12).long()
    colors = torch.tensor(pixels[5], dtype=torch.float).view(size, size, 4)[centers][:, centers, :3]
    lightness = colors.sum(dim=-1)
    weights = recording.weights(("decoder", 1, 1)).dense()[0, 0]
    assert len(colors[weights == 0].unique(dim=0)) == 1  # masked cells
    assert lightness[weights > 0.5].min() > lightness[(weights > 0) & (weights < 0.1)].max()
    entropy = float(recording["decoder"].layers[1].entropy()[0, 1].mean())
    assert page.all(".thumb")[5].get_attribute("aria-label") == f"Decoder, layer 1, head 1, entropy {entropy:.2f} nats"


def test_grouped_heads_share_a_box(page, small):
    page.open(small[1])
    groups = page.all(".group.shared")
    assert [len(group.find_elements(By.CSS_SELECTOR, ".thumb")) for group in groups] == [2] * 4
    assert groups[1].get_attribute("title") == "These heads share key head 1"


@pytest.mark.parametrize("width", [1280, 800])
def test_page_fits_the_window_width(page, translator, browser, width):
    resize(browser, width)
    page.open(translator.url)
    assert page.script("return document.documentElement.scrollWidth") <= width
    left, right = page.script(
        "const box = document.querySelector('.map').getBoundingClientRect(); return [box.left, box.right]"
    )
    assert right - left > 0.4 * width
    assert page.find("#calculation").is_displayed()


def test_pointing_at_a_cell_reads_its_weight_and_score(page, small):
    recording, url = small
    page.open(url, "#head=decoder.1.2")
    weights = recording.weights(("decoder", 1, 2))
    for query, key in ((11, 3), (5, 5), (2, 9)):
        cell, _, values = page.point(key + 0.5, query + 0.5).partition(": ")
        weight, score = values.split(", ")
        assert cell == f"query {query} t{query} → key {key} t{key}"
        assert parse_number(weight) == pytest.approx(float(weights[0, 0, query, key]), rel=1e-3)
        expected = float(weights.scores[0, 0, query, key])
        assert ("−∞" in score) if expected == -torch.inf else parse_number(score) == pytest.approx(expected, rel=1e-3)


def test_sent_weights_are_bit_exact(page, small):
    recording, url = small
    page.open(url, "#head=decoder.0.3")
    sent = page.module_script(
        "return [...figures.sources[1].data.image[0]].map((value) => Number.isNaN(value) ? 0 : value)"
    )
    assert torch.equal(torch.tensor(sent).view(12, 12), recording.weights(("decoder", 0, 3)).dense()[0, 0])


def test_wheel_zooms_at_the_pointer(page, small):
    page.open(small[1], "#head=decoder.0.0")
    assert page.window() == [0, 12, 0, 12]
    page.wheel(3.5, 8.5, 3)
    row, row_end, key, key_end = page.window()
    assert row <= 8 < row_end
    assert key <= 3 < key_end
    assert row_end - row < 12
    assert page.fragment["rows"] == f"{row}-{row_end}"
    assert page.fragment["keys"] == f"{key}-{key_end}"
    assert parse_number(page.point(3.5, 8.5).split(":")[1]) == pytest.approx(
        float(small[0].weights(("decoder", 0, 0))[0, 0, 8, 3]), rel=1e-3
    )
    page.click("#all")
    assert page.window() == [0, 12, 0, 12]
    page.wheel(3.5, 8.5, -3)  # already at the whole matrix
    assert page.window() == [0, 12, 0, 12]


def test_back_reload_and_bookmarks_restore_head_and_window(page, small, browser):
    page.open(small[1], "#head=decoder.1.3")
    page.click("#closer")
    zoomed = page.fragment
    assert "rows" in zoomed
    page.click("[data-head='decoder.0.2']")
    assert page.text("head-heading") == "Decoder, layer 0, head 2"
    assert page.find("[data-head='decoder.0.2']").get_attribute("aria-current") == "true"
    assert page.fragment["head"] == "decoder.0.2"
    browser.back()
    page.until(lambda: page.text("head-heading") == "Decoder, layer 1, head 3")
    page.settle()
    assert page.fragment == zoomed
    browser.back()  # from the window to the whole matrix
    page.until(lambda: "rows" not in page.fragment)
    page.settle()
    assert page.window() == [0, 12, 0, 12]
    browser.forward()
    page.until(lambda: page.fragment == zoomed)
    browser.refresh()
    page.until(lambda: page.text("head-heading") == "Decoder, layer 1, head 3")
    page.settle()
    assert page.fragment == zoomed
    assert page.window() == [*map(int, zoomed["rows"].split("-")), *map(int, zoomed["keys"].split("-"))]


@pytest.mark.parametrize(
    "fragment",
    [
        "#head=nothing.9.9",
        "#head=decoder",
        "#rows=5-900&keys=4-1",
        "#cell=99-99",
        "#given=7",
        "#%%%",
        "#head=decoder.0.0&rows=x",
    ],
)
def test_invalid_addresses_show_a_default(page, small, fragment):
    page.open(small[1], fragment)
    assert page.text("head-heading").startswith("Decoder, layer ")
    assert "weight" in page.text("readout")


def test_arrow_keys_move_the_cursor_and_announce_it(page, small):
    recording, url = small
    page.open(url, "#head=decoder.1.0&cell=6-2")
    weights = recording.weights(("decoder", 1, 0))

    def expected(query, key):
        return f"query t{query}, key t{key}, weight ", float(weights[0, 0, query, key])

    for pressed, query, key in (
        (Keys.ARROW_DOWN, 7, 2),
        (Keys.ARROW_RIGHT, 7, 3),
        (Keys.ARROW_UP, 6, 3),
        (Keys.ARROW_LEFT, 6, 2),
        (Keys.SHIFT + Keys.ARROW_DOWN, 11, 2),
    ):
        message = page.keys(pressed)
        text, weight = expected(query, key)
        assert message.startswith(text)
        assert parse_number(message.rpartition(" ")[2]) == pytest.approx(weight, rel=1e-3)
        assert page.fragment["cell"] == f"{query}-{key}"
    page.keys("+")
    row, row_end, key, key_end = page.window()
    assert row_end - row == key_end - key == 6
    page.keys(*[Keys.ARROW_UP] * 9)  # the window follows
    assert page.fragment["cell"] == "2-2"
    assert page.window()[0] <= 2
    page.keys("0")
    assert page.window() == [0, 12, 0, 12]


def test_table_shows_the_window(page, small):
    recording, url = small
    page.open(url, "#head=decoder.1.0&rows=4-8&keys=2-5")
    page.click("#window-table summary")
    cells = [
        [cell.text for cell in row.find_elements(By.CSS_SELECTOR, "th, td")] for row in page.all("#window-table tr")
    ]
    assert cells[0] == ["", "t2", "t3", "t4"]
    assert [row[0] for row in cells[1:]] == ["t4", "t5", "t6", "t7"]
    weights = recording.weights(("decoder", 1, 0))[0, 0, 4:8, 2:5]
    for row, expected in zip(cells[1:], weights.tolist(), strict=True):
        assert [parse_number(cell) for cell in row[1:]] == pytest.approx(expected, rel=1e-2, abs=1e-9)


def test_colors_follow_the_scale_and_the_palette(page, small):
    recording, url = small
    page.open(url, "#head=decoder.0.1")
    query, key = 7, 3
    weight = float(recording.weights(("decoder", 0, 1))[0, 0, query, key])
    largest = float(recording.weights(("decoder", 0, 1)).dense().max())
    assert page.color(query, key) == near(Viridis256, 1 - math.log(weight) / math.log(0.1 / 12))
    page.click("[name=scale][value=linear]")
    assert page.color(query, key) == near(Viridis256, weight / largest)
    assert page.text("low") == "0"
    dark = page.script("return document.querySelector('.thumb canvas').toDataURL()")
    page.choose("palette", "greys")
    assert page.color(query, key) == near(Greys256[::-1], weight / largest)
    assert page.script("return document.querySelector('.thumb canvas').toDataURL()") != dark


def near(palette, share):
    """Return the color of a share, with a tolerance of one shade because the page draws in float32."""
    color = palette[min(255, int(256 * share))]
    return pytest.approx([int(color[start : start + 2], 16) for start in (1, 3, 5)], abs=4)


def test_sinks_can_be_hidden(page, small):
    recording, url = small
    page.open(url, "#head=decoder.0.1")
    assert page.text("hide-label") == "hide sinks t0"
    page.click("#hide")
    sent = page.module_script(
        "return [...figures.sources[1].data.image[0]].map((value) => Number.isNaN(value) ? 0 : value)"
    )
    expected = recording.weights(("decoder", 0, 1)).dense()[0, 0].clone()
    expected[:, 0] = 0
    torch.testing.assert_close(torch.tensor(sent).view(12, 12), expected, rtol=0, atol=1e-6)
    assert page.point(0.5, 5.5).endswith(": hidden")
    bars = page.script(
        "return [...Bokeh.documents[0].get_model_by_name('received').renderers[0].data_source.data.value]"
    )
    assert bars[0] == 0
    assert min(bars[1:]) > 0


def test_heads_are_sorted_and_filtered(page, translator):
    page.open(translator.url)

    def entropies():
        return [parse_number(value.text) for value in page.all(".thumb .value")]

    page.choose("sort", "sharp")
    assert len(entropies()) == 96
    assert entropies() == sorted(entropies())
    page.choose("sort", "broad")
    assert entropies() == sorted(entropies(), reverse=True)
    page.choose("filter", "stack:cross")
    assert len(page.all(".thumb")) == 32
    page.choose("filter", "label:self")
    labels = [thumb.get_attribute("aria-label") for thumb in page.all(".thumb")]
    assert 0 < len(labels) < 32
    assert all("self" in label for label in labels)


def test_labels_from_roles_are_shown(page):
    roles = Roles("a model", {("decoder", 1, 3): HeadStatistics(9, induction=0.8)})
    with showing(page, decoder(PLAIN_TOKENS), roles=roles) as viewer:
        page.open(viewer.url)
        page.choose("filter", "label:induction")
        assert [thumb.get_attribute("data-head") for thumb in page.all(".thumb")] == ["decoder.1.3"]


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (800, "dark")])
def test_page_has_no_accessibility_violations(page, translator, browser, theme, width):
    resize(browser, width)
    emulate(browser, theme=theme)
    page.open(translator.url)
    page.click("#window-table summary")
    assert violations(browser) == []


def test_dark_page_has_light_axis_labels(page, small, browser):
    emulate(browser, theme="dark")
    page.open(small[1])
    assert page.module_script("return figures.map.left[0].major_label_text_color") == "rgb(236, 238, 242)"
