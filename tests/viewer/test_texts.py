"""Tests of the viewer in a real browser: texts, tokens, the calculation of a row, errors."""

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from clearhead.recording.example_texts import EXAMPLE_SENTENCE
from clearhead.viewer.server._texts import Texts
from support.browser import complaints
from support.recordings import AWKWARD, decoder, translation
from support.viewer_page import PLAIN_TOKENS, parse_number, served, showing


def test_typed_text_is_run(page, translator, browser):
    page.open(translator.url)
    first = page.fragment
    box = page.find("#text")
    box.clear()
    box.send_keys("She plays the piano.", Keys.ENTER)
    page.until(lambda: "6 tokens" in page.text("head-facts"))
    page.settle()
    assert page.fragment["text"] == "She plays the piano."
    assert "piano" in page.find("#lines").text
    bookmark = browser.current_url.partition("#")[2]
    browser.back()
    page.until(lambda: "17 tokens" in page.text("head-facts"))
    page.settle()
    assert page.fragment == first
    assert page.find("#text").get_attribute("value") == EXAMPLE_SENTENCE
    page.open(translator.url, f"#{bookmark}")
    assert page.find("#text").get_attribute("value") == "She plays the piano."


def test_rejected_text_shows_an_error_and_keeps_the_page(page, translator):
    page.open(translator.url)
    before = page.text("head-facts")
    box = page.find("#text")
    box.clear()
    box.send_keys("  ", Keys.ENTER)
    page.until(lambda: page.text("status") == "the text is empty")
    assert page.text("head-facts") == before
    box.clear()
    box.send_keys("I like ☃.", Keys.ENTER)
    page.until(lambda: page.text("notes") == "text: never seen in training: '☃'")


def test_listed_texts_can_be_selected(page):
    with showing(page, "en-ja", text=["She plays.", "He reads a long book."]) as viewer:
        page.open(viewer.url)
        assert page.find("#given").is_displayed()
        assert [option.text for option in page.all("#given option")] == ["1: She plays.", "2: He reads a long book."]
        facts = page.text("head-facts")
        page.choose("given", "1")
        page.until(lambda: page.text("head-facts") != facts)
        assert page.fragment["given"] == "1"


def test_token_shows_its_top_keys_and_top_queries(page, small):
    recording, url = small
    page.open(url, "#head=decoder.1.0&cell=6-2")
    assert len(page.all("#lines .word")) == 24
    page.click("#lines .queries .word:nth-child(10)")
    assert page.fragment["cell"] == "9-9"  # the same token on both sides
    assert page.text("from-heading") == "What t9 attends to"
    assert page.text("to-heading") == "What attends to t9"
    rows = page.all("#from tr")
    assert len(rows) == 1 + 8
    tops = {}
    for row in rows[1:]:
        layer, head = (int(part.split()[1]) for part in row.find_element(By.CSS_SELECTOR, "th").text.split(", "))
        tops[layer, head] = row.find_element(By.CSS_SELECTOR, ".key").text
    for (layer, head), top in tops.items():
        weight, key = recording.weights(("decoder", layer, head))[0, 0, 9].max(dim=0)
        token, shown = top.split()
        assert token == f"t{int(key)}{int(key)}"  # with its position
        assert float(shown) == pytest.approx(float(weight), abs=0.006)
    page.click("#to tr:nth-child(3) button")
    assert page.fragment["head"] in {f"decoder.{layer}.{head}" for layer in range(2) for head in range(4)}
    assert page.fragment["cell"] == "9-9"


def test_lines_show_all_tokens_after_zooming(page, small):
    page.open(small[1], "#head=decoder.1.0&rows=2-8&keys=2-8&cell=3-2")
    assert len(page.all("#lines .word")) == 24
    page.keys(Keys.ARROW_DOWN)
    assert [word.text for word in page.all("#lines .word.chosen")] == ["t4", "t2"]


def test_cross_attention_selects_query_and_key_separately(page):
    with showing(page, translation("abcde", "xyz")) as viewer:
        page.open(viewer.url, "#head=cross.0.1&cell=1-3")
        assert page.text("from-heading") == "What y attends to"
        assert page.text("to-heading") == "What attends to d"
        page.click("#lines .queries .word")
        assert page.fragment["cell"] == "0-3"


def test_calculation_shows_every_step(page, small):
    recording, url = small
    page.open(url, "#head=decoder.1.0&cell=9-4")
    weights = recording.weights(("decoder", 1, 0))
    rows = [[cell.text for cell in row.find_elements(By.CSS_SELECTOR, "th, td")] for row in page.all("#terms tr")]
    assert rows[0][:2] == ["key", "q · k"]
    top = weights[0, 0, 9].topk(5)
    for row, key, weight in zip(rows[1:6], top.indices.tolist(), top.values.tolist(), strict=True):
        assert row[0] == f"{key} t{key}"
        score = float(weights.scores[0, 0, 9, key])
        assert parse_number(row[1]) == pytest.approx(score * 8**0.5, rel=1e-3)
        assert parse_number(row[2]) == pytest.approx(score, rel=1e-3)
        assert parse_number(row[3]) == pytest.approx(weight, rel=1e-3)
        contribution = weight * weights.value[0, 0, key].norm()
        assert parse_number(row[4]) == pytest.approx(float(contribution), rel=1e-3)
    assert any(row[0] == "4 t4" for row in rows)
    vectors = [row.text for row in page.all("#vectors tr")]
    assert vectors[0].startswith("q t9 ")
    assert any(line.startswith("q × k t4") and "sum" in line for line in vectors)
    assert vectors[-1].startswith("Σ weight · v")


def test_awkward_tokens_are_shown_verbatim(page, browser):
    with showing(page, decoder(AWKWARD)) as viewer:
        page.open(viewer.url, "#head=decoder.0.0")
        expected = ["\\n" if token == "\n" else token for token in AWKWARD]
        expected[7] = "x" * 79 + "…"
        assert page.module_script("return state.tokens.keys") == expected
        lines = [word.text for word in page.all("#lines .word")]
        assert lines[:7] == expected[:7]
        page.click("#window-table summary")
        assert [heading.text for heading in page.all("#window-table thead th")] == expected
        assert page.script("return document.querySelectorAll('script').length") == page.script(
            "return document.querySelectorAll('head script, body > script').length"
        )
        assert page.all("main b") == []
        labels = page.module_script(
            "return [...Bokeh.index.find_one(figures.map.above[0])._major_label_views.values()]"
            ".map(({ model }) => [model.type, model.text])"  # as drawn, not as sent
        )
        assert {kind for kind, _ in labels} == {"PlainText"}
        assert labels[2][1] == "\u2068$$x$$\u2069"
        for key, text in enumerate(expected):
            assert text[:20] in page.point(key + 0.5, 11.5)
        assert page.script("return document.documentElement.scrollWidth") <= 1280
        assert browser.title == "clearhead: a model"


def test_later_requests_replace_earlier_ones(page, translator, browser):
    """Repeatedly click a head and run another text at once; results of replaced requests are dropped."""
    page.open(translator.url)
    for layer in range(4):
        page.script("document.querySelector(arguments[0]).click()", f"[data-head='encoder.{layer}.3']")
        page.module_script("ask('go', {text: arguments[0]})", f"She has {layer} books.")
        page.script("document.querySelector(arguments[0]).click()", f"[data-head='decoder.{layer}.1']")
    page.settle()
    assert page.text("head-heading") == "Decoder, layer 3, head 1"
    assert page.module_script("return state.model.text") == page.find("#text").get_attribute("value")
    assert page.text("status") == ""


def test_page_rejects_too_long_text(page, translator):
    page.open(translator.url)
    page.script("document.getElementById('text').value = 'x'.repeat(2000000)")
    page.click("#run button")
    assert page.text("status") == "the text has 2,000,000 characters; expected at most 20,000"


def test_recording_disables_the_text_box(page, small):
    page.open(small[1])
    assert not page.find("#text").is_enabled()
    assert not page.find("#run button").is_enabled()


def test_page_reports_a_stopped_server(page, browser):
    with served(decoder(PLAIN_TOKENS)) as viewer:
        page.open(viewer.url)
    page.until(lambda: page.text("status") == "clearhead view has stopped; start it again and open its new link")
    browser.get("about:blank")
    complaints(browser)  # discards the logged connection errors


def test_page_shows_errors_of_computations(page, monkeypatch):
    texts = Texts(decoder(PLAIN_TOKENS))
    monkeypatch.setattr(texts.first.cache, "overview", lambda *a, **k: 1 / 0)
    monkeypatch.setattr("clearhead.viewer.server.serve.Texts", lambda *a, **k: texts)
    with showing(page, decoder(PLAIN_TOKENS)) as viewer:
        page.open(viewer.url)
        page.until(lambda: page.text("status") == "division by zero")
