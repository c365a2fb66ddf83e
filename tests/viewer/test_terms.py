"""Tests of the explained terms in a real browser: marks, tooltips, and the glossary of the page."""

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys

from clearhead import report
from support.browser import requested
from support.recordings import AWKWARD, decoder
from support.viewer_page import violations


def marks(page, region: str) -> set[str]:
    return {mark.get_attribute("data-term") for mark in page.all(f"{region} [data-term]")}


def hover(page, selector: str) -> str:
    """Move the mouse to an element and return the tooltip."""
    page.until(lambda: page.all(selector))  # facts of a head are replaced when they arrive
    page.script("arguments[0].scrollIntoView({block: 'center'})", page.find(selector))
    page.settle()  # scrolling closes the tooltip
    page.until(lambda: page.all(selector))
    ActionChains(page.browser, duration=20).move_to_element(page.find(selector)).perform()
    page.until(lambda: page.find("#term-help").is_displayed())
    return page.text("term-help")


def test_first_use_of_a_term_is_marked_when_texts_arrive_late(page, translator):
    page.open(translator.url)
    page.settle()
    facts = page.text("head-facts")
    assert "nats" in facts
    page.script("document.getElementById('head-facts').textContent = ''")
    page.until(lambda: page.all("#head [data-term='nats']"))  # the next use
    page.script("document.getElementById('head-facts').textContent = arguments[0]", facts)
    page.until(lambda: page.all("#head-facts [data-term='nats']"))
    assert len(page.all("#head [data-term='nats']")) == 1
    assert page.text("head-facts") == facts


def test_terms_are_explained_in_place(page, translator, browser):
    page.open(translator.url)
    page.settle()  # facts of the head are replaced when its statistics arrive
    requested(browser)
    assert marks(page, "#head") >= {"bins", "log", "sink", "nats", "entropy", "received", "query"}
    assert marks(page, "#words") >= {"query", "key"}
    assert marks(page, "#heads") >= {"head", "entropy", "label", "encoder", "decoder", "cross-attention"}
    assert marks(page, "#calculation") >= {"query", "score", "weight", "log-sum-exp", "W_O", "residual stream"}
    assert not page.all("bdi [data-term], [data-term] [data-term], .thumb [data-term]")
    assert not page.all("[data-term][tabindex]")
    assert hover(page, "#head-facts [data-term='nats']").startswith("nats The unit of entropy")
    page.find("body").send_keys(Keys.ESCAPE)
    page.until(lambda: not page.find("#term-help").is_displayed())

    page.click("#more summary")
    page.script("document.querySelector('[name=reduce]').focus()")  # the legend of its group is explained
    page.find("[name=reduce]:checked").send_keys(Keys.ARROW_RIGHT)
    page.until(lambda: page.find("#term-help").is_displayed())
    assert page.text("term-help").startswith("bins Rectangles")
    assert page.find("[name=reduce]:checked").get_attribute("aria-describedby") == "term-help"
    page.settle()
    assert violations(browser) == []

    assert len(page.all(".help")) == len(page.all("main > section, #statistics"))
    page.find("#head .help").send_keys(Keys.ENTER)
    assert page.find("#glossary").is_displayed()
    headings = [heading.text for heading in page.all("#glossary h3")]
    assert headings == ["In this part", "Elsewhere"]
    names = [term.text for term in page.all("#glossary dt")]
    assert len(names) == len(set(names)) > 35
    page.find("#glossary").send_keys(Keys.ESCAPE)
    page.until(lambda: not page.find("#glossary").is_displayed())
    assert page.script("return document.activeElement.className") == "help"

    page.click("#run button")  # a new text has new notes
    assert marks(page, "#calculation") >= {"query", "score", "weight", "log-sum-exp", "W_O", "residual stream"}
    assert {address for address in requested(browser) if not address.startswith(("data:", "blob:"))} == set()


@pytest.mark.parametrize("tokens", [["head", "entropy", "<b>weight</b>", "sink", "key", *AWKWARD]])
def test_report_explains_its_terms_but_not_its_tokens(page, tmp_path, tokens):
    report(decoder(tokens), tmp_path / "report.html")
    page.open((tmp_path / "report.html").as_uri())
    assert marks(page, "#statistics") >= {"entropy", "distance", "self", "positional"}
    assert marks(page, "#words") <= {"query", "key", "weight"}
    assert not page.all("bdi [data-term], svg [data-term]")
    assert hover(page, "#statistics thead [data-term='positional']").startswith("positional For 9 of 10")
    page.find("#term-help button").click()
    assert page.find("#glossary dt.chosen").text == "positional"
