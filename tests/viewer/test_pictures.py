"""Tests of the pictures and the table of all heads in a real browser: one token, any statistic, sorting, clicks."""

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys

from clearhead import report
from support.recordings import decoder
from support.viewer_page import PLAIN_TOKENS, parse_number, showing, violations


def cell(page, picture, head):
    button = page.find(f"#{picture} [data-pictured='{head}']")
    return button.text, button.get_attribute("aria-label")


def brightness(page, picture):
    """Return the sum of red, green and blue of every cell, by head."""
    return page.script(
        "return Object.fromEntries([...document.querySelectorAll(`#${arguments[0]} button`)].map((cell) =>"
        " [cell.dataset.pictured, getComputedStyle(cell).backgroundColor.match(/\\d+/g).map(Number)"
        ".reduce((sum, part) => sum + part)]))",
        picture,
    )


@pytest.fixture(params=["live", "report"])
def opened(request, page, small, tmp_path):
    """Return a recording whose page or report is open on one cell."""
    recording, url = small
    if request.param == "report":
        path = tmp_path / "report.html"
        report(recording, path)
        url = path.as_uri()
    page.open(url, "#head=decoder.1.0&cell=9-4")
    page.until(lambda: len(page.all("#token-picture button")) == len(page.all("#statistics-table tbody tr")) == 8)
    return recording


def test_token_picture_shows_and_opens_the_top_key_of_each_head(page, opened):
    page.until(lambda: page.text("picture-heading") == "The top key of t9 in every head")
    tops = {}
    for name, layer, head in opened.heads():
        weight, key = opened.weights((name, layer, head))[0, 0, 9].max(dim=0)
        tops[f"{name}.{layer}.{head}"] = float(weight)
        text, label = cell(page, "token-picture", f"{name}.{layer}.{head}")
        assert text == f"t{int(key)}"
        assert f"Decoder, layer {layer}, head {head}, t{int(key)} (key {int(key)}): weight" in label
        assert parse_number(label.rpartition(" ")[2]) == pytest.approx(float(weight), rel=6e-3)
    shades = brightness(page, "token-picture")
    assert max(shades, key=lambda head: shades[head]) == max(tops, key=lambda head: tops[head])
    page.choose("picture-key", "chosen")
    assert page.text("picture-heading") == "The weight of t9 on t4 in every head"
    weight = float(opened.weights(("decoder", 0, 3))[0, 0, 9, 4])
    assert parse_number(cell(page, "token-picture", "decoder.0.3")[0]) == pytest.approx(weight, rel=6e-3)
    page.choose("picture-key", "top")
    page.script("document.querySelector('#token-picture [tabindex=\"0\"]').focus()")
    assert page.browser.switch_to.active_element.get_attribute("data-pictured") == "decoder.1.0"
    ActionChains(page.browser).send_keys(Keys.ARROW_UP, Keys.ARROW_RIGHT, Keys.ENTER).perform()
    key = int(opened.weights(("decoder", 0, 1))[0, 0, 9].argmax())
    page.until(lambda: page.fragment == {"head": "decoder.0.1", "cell": f"9-{key}"})
    page.settle()
    assert page.find("#token-picture [aria-current]").get_attribute("data-pictured") == "decoder.0.1"


def test_statistics_are_a_picture_and_a_sorted_table(page, opened):
    entropies = {
        f"{name}.{layer}.{head}": float(opened.weights((name, layer, head)).entropy().mean())
        for name, layer, head in opened.heads()
    }
    text, label = cell(page, "statistics-picture", "decoder.1.2")
    assert text == f"{entropies['decoder.1.2']:.2f}"
    assert label == f"Decoder, layer 1, head 2, entropy {text} nats"
    shades = brightness(page, "statistics-picture")
    assert max(shades, key=lambda head: shades[head]) == max(entropies, key=lambda head: entropies[head])
    page.choose("statistic", "previous")
    previous = float(opened.weights(("decoder", 1, 2)).diagonal(-1)[0, 0, 1:].mean())
    assert cell(page, "statistics-picture", "decoder.1.2")[0] == f"{previous:.2f}"

    def heads():
        return page.script(
            "return [...document.querySelectorAll('#statistics-table [data-head]')].map((b) => b.dataset.head)"
        )

    headings = [heading.text for heading in page.all("#statistics-table thead th")]
    assert {"head", "labels", "entropy", "distance", "first token", "previous"} <= set(headings)
    page.click(f"#statistics-table thead th:nth-child({headings.index('entropy') + 1}) button")
    assert heads() == sorted(entropies, key=lambda head: -entropies[head])
    page.click(f"#statistics-table thead th:nth-child({headings.index('entropy') + 1}) button")
    assert heads() == sorted(entropies, key=lambda head: entropies[head])
    assert len(page.all("#statistics-table [tabindex='0']")) == 1
    page.click("#statistics-table [data-head='decoder.0.2']")
    page.until(lambda: page.fragment["head"] == "decoder.0.2")
    assert violations(page.browser) == []


def test_picture_of_many_heads_stays_readable(page):
    many = decoder(PLAIN_TOKENS, layers=30, heads=32, kv_heads=8)
    with showing(page, many) as viewer:
        page.open(viewer.url)
        page.until(lambda: len(page.all("#token-picture button")) == 960)
        width, height = page.script(
            "const box = document.querySelector('#token-picture button').getBoundingClientRect();"
            " return [box.width, box.height]"
        )
        assert width > 12
        assert height > 12
        assert page.script("return document.documentElement.scrollWidth") <= 1280
        page.click("#token-picture [data-pictured='decoder.29.31']")
        page.until(lambda: page.fragment["head"] == "decoder.29.31")
