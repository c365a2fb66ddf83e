"""Tests of the lists of tokens of all heads in a real browser: weights, spaces, positions, clicks, hidden sinks."""

import pytest
import torch
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys

from clearhead import Causal
from support.crafted_recordings import recording, tokens, weights_of
from support.viewer_page import served

TEXTS = ["<s>", "wait", " for", "for", " in", " for"]


@pytest.fixture(scope="module")
def lists():
    """Yield the URL of a page of 3 heads. All but the first put most weight on the first token."""
    weights = torch.ones(3, 6, 6, dtype=torch.double).tril()
    weights[0, 5] = torch.tensor([0.2, 4.2e-5, 0.5, 0.2, 0.05, 0.05])
    weights[1, 5] = torch.tensor([0.99, 0, 0.002, 0.001, 0.001, 0.006])
    weights[2, 5] = torch.tensor([0.8, 0, 0, 0, 0.2, 0])
    weights /= weights.sum(dim=-1, keepdim=True)
    with served(recording(weights_of(weights, mask=Causal()), texts=tokens(TEXTS), name="decoder")) as viewer:
        yield viewer.url


def rows(page, table="from"):
    """Return the head and the chips of each row of a list."""
    return page.script(
        "return [...document.querySelectorAll(`#${arguments[0]} tr`)].map((row) =>"
        " [row.cells[0].innerText, ...[...row.cells[1].children].map((chip) => chip.innerText)])",
        table,
    )


def test_lists_show_small_weights_spaces_and_positions(page, lists):
    page.open(lists, "#head=decoder.0.0&cell=5-2")
    assert page.text("from-heading") == "What  for attends to"
    assert page.text("to-heading") == "What attends to  for"
    listed = {name: chips for name, *chips in rows(page)}
    assert listed["layer 0, head 1"] == ["<s>0 0.990", "␣for5 0.00600", "␣for2 0.00200", "for3 0.00100", "␣in4 0.00100"]
    assert listed["layer 0, head 0"][0] == "␣for2 0.500"
    page.open(lists, "#head=decoder.0.0&cell=5-1")
    received = {name: chips for name, *chips in rows(page, "to")}
    assert received["layer 0, head 0"][-1] == "␣for5 4.2e−5"


def test_tokens_of_lists_open_their_cell_by_mouse_and_keyboard(page, lists):
    page.open(lists, "#head=decoder.0.0&cell=5-2")
    page.click("#from tr:nth-child(4) .key:nth-child(2)")  # head 0 is last; its second key
    page.until(lambda: (page.fragment["head"], page.fragment["cell"]) == ("decoder.0.0", "5-0"))
    page.click("#from tr:nth-child(2) .key:nth-child(2)")
    page.until(lambda: (page.fragment["head"], page.fragment["cell"]) == ("decoder.0.1", "5-5"))
    page.until(lambda: page.text("to-heading") == "What attends to  for")
    page.settle()
    page.script("document.querySelector('#to [tabindex=\"0\"]').focus()")
    ActionChains(page.browser).send_keys(Keys.ARROW_DOWN).perform()
    chip = page.browser.switch_to.active_element
    assert chip.get_attribute("class") == "key"
    name = page.script("return arguments[0].closest('tr').cells[0].innerText", chip)
    query = page.script("return arguments[0].querySelector('sub').textContent", chip)
    ActionChains(page.browser).send_keys(Keys.ENTER).perform()
    expected = {"head": f"decoder.0.{name[-1]}", "cell": f"{query}-5"}
    page.until(lambda: page.fragment == expected)
    page.settle()
    assert page.script("return document.activeElement.closest('#to') !== null")  # the new list keeps the focus
    second = page.script("return document.querySelectorAll('#from tr:first-child sub')[1].textContent")
    page.click("#from tr:first-child .key:nth-child(2)")  # of the mean of all heads
    page.until(lambda: page.fragment == {**expected, "cell": f"{query}-{second}"})


def test_hidden_sinks_are_left_out_of_the_lists(page, lists):
    page.open(lists, "#head=decoder.0.0&cell=5-2")
    assert [name for name, *_ in rows(page)][1:] == [f"layer 0, head {head}" for head in (1, 2, 0)]
    page.click("#hide")
    page.until(lambda: page.text("from-heading") == "What  for attends to, without the sink")
    names = [name for name, *_ in rows(page)]
    assert names == ["mean of all heads", *(f"layer 0, head {head}" for head in (0, 2, 1))]
    assert not any("<s>" in chip for _, *chips in rows(page) for chip in chips)
    page.click("#hide")
    page.until(lambda: page.text("from-heading") == "What  for attends to")


def test_another_head_of_the_same_cell_is_marked(page, lists):
    page.open(lists, "#head=decoder.0.0&cell=5-2")
    for head in (0, 2):  # the lists are equal, so the server sends them once
        page.click(f"[data-head='decoder.0.{head}']")
        page.settle()
        for table in ("from", "to"):
            marked = [row.find_element("css selector", "th").text for row in page.all(f"#{table} tr.chosen")]
            assert marked == [f"layer 0, head {head}"]
