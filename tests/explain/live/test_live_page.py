"""Tests of the live page in a real browser: every edit is compared with Python's calculation of the exported file."""

import json

import pytest
import torch
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from clearhead import MultiHeadAttention, trace
from clearhead.explain import load
from clearhead.explain.render import render
from support.browser import emulate, requested, resize
from support.live_page import (
    assert_matches_python,
    assert_same,
    cell,
    changes,
    choose,
    control,
    enter,
    exported,
    let_announce,
    said,
    scroll_to,
    shown,
    status,
    touch,
    wait,
    was_marked,
    watch,
    written,
)
from support.viewer_page import violations

pytestmark = pytest.mark.usefixtures("blank_page")

EXAMPLES = ("song", "two-heads", "three-by-four", "causal-decoder", "cross-attention", "grouped-heads", "embeddings")
HOSTILE = '<img src=x onerror=alert(1)> ]]></script> שלום 🙂 \u202e"two words" __proto__'
CORNER = "const {x, y} = arguments[0].getBoundingClientRect(); return [x + 20, y + 8]"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("live")
    traces = {name: load(name).trace() for name in EXAMPLES}
    traces["part"] = load("song-causal").trace().select(["input", "key", "mask", "masked", "weights"])
    texts = {name: render(traced, "html", title=name) for name, traced in traces.items()}
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text)
    return {name: ((folder / f"{name}.html").as_uri(), text) for name, text in texts.items()}


def test_browser_writes_the_same_page_as_python(browser, pages):
    for name, (url, text) in pages.items():
        browser.get(url)
        assert_same(shown(browser), written(browser, text), name)
        assert {address for address in requested(browser) if not address.startswith("data:")} == {url}


def test_edits_of_numbers_give_the_calculation_of_python(browser, pages):
    browser.get(pages["causal-decoder"][0])
    watch(browser)
    scroll_to(browser, cell(browser, "input", 0, 1, "input")).click()
    browser.switch_to.active_element.send_keys("0.75")
    assert browser.switch_to.active_element.get_attribute("value") == "0.75"
    assert cell(browser, "input", 0, 1, "query-1").text == "0.75"  # recomputed while typing
    assert was_marked(browser, cell(browser, "query-1", 0, 1, "query-1"))
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert browser.switch_to.active_element == cell(browser, "input", 1, 1, "input")
    # keys with Alt, the wheel, and a drag
    weight = scroll_to(browser, cell(browser, "W_K-1", 1, 0))
    browser.execute_script("arguments[0].focus()", weight)
    ActionChains(browser).key_down(Keys.ALT).send_keys(Keys.ARROW_UP).key_down(Keys.SHIFT).send_keys(
        Keys.ARROW_DOWN
    ).key_up(Keys.SHIFT).key_up(Keys.ALT).perform()
    assert weight.text == "1.09"
    wheel = "arguments[0].dispatchEvent(new WheelEvent('wheel', {deltaY: 100, bubbles: true, cancelable: true}))"
    browser.execute_script(wheel, weight)
    assert weight.text == "0.99"
    output = scroll_to(browser, cell(browser, "W_O", 0, 1))
    before = float(output.text.replace("−", "-"))
    ActionChains(browser).click_and_hold(output).move_by_offset(20, 0).move_by_offset(21, 0).release().perform()
    assert float(output.text.replace("−", "-")) == pytest.approx(before + 0.5)
    assert not browser.find_elements(By.CSS_SELECTOR, ".cell-input")  # a drag is not a click
    # a masked score is shown, a visible one is hidden
    for row, column in ((0, 2), (2, 0)):
        mask = scroll_to(browser, cell(browser, "M", row, column, "masked-2"))
        browser.execute_script("arguments[0].focus()", mask)
        browser.switch_to.active_element.send_keys(Keys.SPACE)
    assert Select(control(browser, "Mask")).first_selected_option.text == "custom cells"
    assert "hidden" in cell(browser, "weights-1", 2, 0, "weights-1").get_attribute("class")
    assert len(changes(browser)) == 4
    assert_matches_python(browser)
    data = json.loads(exported(browser, "json"))
    assert data["title"] == "causal-decoder"
    size, *start = exported(browser, "png")
    assert size > 20_000
    assert bytes(start) == b"\x89PNG\r\n\x1a\n"


def test_settings_give_the_calculation_of_python(browser, pages):
    browser.get(pages["two-heads"][0])
    settings = [
        lambda: choose(browser, "Mask", "padding"),
        lambda: enter(browser, "last keys hidden", "3"),
        lambda: choose(browser, "Mask", "none"),
        lambda: enter(browser, "factor", "0.25"),
        lambda: control(browser, "Scaling").click(),
        lambda: choose(browser, "Softmax over", "columns"),
        lambda: choose(browser, "Each head reads", "project"),
        lambda: choose(browser, "Heads", "1"),
        lambda: choose(browser, "Heads", "4"),
        lambda: choose(browser, "Keys and values from", "cross"),
        lambda: enter(browser, "Tokens of Z", "three more words"),
        lambda: enter(browser, "Tokens", '"token 2" new "token 1"'),
        lambda: control(browser, "Positions").click(),
        lambda: control(browser, "W_O").click(),
    ]
    for index, change in enumerate(settings):
        before = shown(browser)
        change()
        assert shown(browser) != before, index
        if index in (1, 5, 8, 11, 13):
            assert_matches_python(browser)
    assert shown(browser)["menu"][:4] == ["1. Embedding", "2. Positions", "3. Input", "4. Memory"]
    control(browser, "Scaling").click()
    ActionChains(browser).key_down(Keys.CONTROL).send_keys("z").key_up(Keys.CONTROL).perform()  # in a check box
    assert not control(browser, "Scaling").is_selected()
    control(browser, "Scaling").click()
    enter(browser, "Tokens", " ".join("abcdefghijklm"))
    let_announce(browser)
    assert status(browser) == "There are 13 tokens; expected at most 12."
    assert control(browser, "Tokens").get_attribute("value") == '"token 2" new "token 1"'
    enter(browser, "factor", "none")
    assert "is NaN; expected a number" in status(browser)


def test_given_matrix_is_an_input_until_it_is_computed(browser, pages):
    browser.get(pages["song"][0])
    scroll_to(browser, cell(browser, "key-1", 0, 0, "scores-1")).click()  # a cell of Kᵀ
    browser.switch_to.active_element.send_keys("0.5", Keys.ENTER)
    assert cell(browser, "key-1", 0, 0, "key-1").text == "0.50"
    assert browser.find_element(By.CSS_SELECTOR, "#key-1 .origin").text == (
        "given by the text, not computed; 1 number changed"
    )
    assert_matches_python(browser)
    scroll_to(browser, browser.find_element(By.CSS_SELECTOR, "#key-1 .compute")).click()
    assert shown(browser)["sections"]["key-1"]["formula"] == "K = X W_K"
    assert_matches_python(browser)


def test_history_and_link_restore_the_numbers(browser, pages):
    url, _ = pages["three-by-four"]
    browser.get(url)
    first = shown(browser)
    press = {name: f"document.querySelector('[data-act={name}]').click()" for name in ("undo", "redo", "reset")}
    for row, text in ((0, "2.5"), (1, "−1")):
        scroll_to(browser, cell(browser, "input", row, 0, "input")).click()
        browser.switch_to.active_element.send_keys(text, Keys.ENTER)
    choose(browser, "Mask", "causal")
    last = shown(browser)
    assert changes(browser)[0] == "mask: none → causal"
    assert len(changes(browser)) == 3
    for _ in range(3):
        ActionChains(browser).key_down(Keys.CONTROL).send_keys("z").key_up(Keys.CONTROL).perform()
    assert shown(browser) == first
    ActionChains(browser).key_down(Keys.CONTROL).send_keys("y").key_down(Keys.SHIFT).send_keys("z").key_up(
        Keys.SHIFT
    ).key_up(Keys.CONTROL).perform()
    browser.execute_script(press["redo"])
    assert shown(browser) == last
    browser.execute_script(press["reset"])
    assert shown(browser) == first
    browser.execute_script(press["undo"])
    browser.execute_script("navigator.clipboard.writeText = () => Promise.reject(new Error('refused'))")
    scroll_to(browser, browser.find_element(By.CSS_SELECTOR, "[data-save=link]")).click()
    wait(browser, lambda: status(browser).startswith("Copy this link."))
    link = browser.switch_to.active_element.get_attribute("value")
    wait(browser, lambda: browser.current_url == link)
    # the address carries the numbers, and still selects a step
    browser.get("about:blank")
    browser.get(link.replace("#", "#weights-1&", 1))
    assert shown(browser) == last
    assert browser.find_element(By.CSS_SELECTOR, "section.current").get_attribute("id") == "weights-1"
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.ARROW_RIGHT)
    assert "#head_output-1&layer=" in browser.current_url
    browser.get(f"{url}#weights-1")  # without numbers: those of the start
    wait(browser, lambda: shown(browser) == first)
    browser.get("about:blank")
    browser.get(f"{url}#layer=1.nonsense")
    assert status(browser).startswith("The link cannot be read:")
    assert shown(browser) == first


def test_keys_move_and_edit_inside_one_tab_stop(browser, pages):
    browser.get(pages["causal-decoder"][0])
    count = "table.querySelectorAll('[tabindex=\"0\"]').length"
    stops = f"return [...document.querySelectorAll('table')].map((table) => {count})"
    assert set(browser.execute_script(stops)) == {1}
    watch(browser)
    start = scroll_to(browser, cell(browser, "W_Q-1", 0, 0))
    browser.execute_script("arguments[0].focus()", start)
    ActionChains(browser).send_keys(Keys.ARROW_DOWN, Keys.END, Keys.ARROW_RIGHT, "7").perform()
    assert browser.switch_to.active_element.get_attribute("value") == "7"
    assert cell(browser, "query-1", 1, 1, "query-1").text != "0.50"
    ActionChains(browser).send_keys("x").perform()
    assert browser.switch_to.active_element.get_attribute("aria-invalid") == "true"
    let_announce(browser)
    assert status(browser) == "“7x” is not a number yet; the last number stays."
    ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    assert not browser.find_element(By.CSS_SELECTOR, "[data-act=undo]").is_enabled()
    assert browser.switch_to.active_element == cell(browser, "W_Q-1", 1, 1)
    assert (cell(browser, "W_Q-1", 1, 1).text, changes(browser)[0][:7]) == ("1.0", "Nothing")
    before = len(said(browser))
    ActionChains(browser).send_keys(Keys.ENTER, "3", Keys.TAB, Keys.DELETE, Keys.ARROW_LEFT).perform()
    assert [cell(browser, "W_Q-1", row, column).text for row, column in ((1, 1), (2, 0))] == ["3.0", "0.0"]
    assert set(browser.execute_script(stops)) == {1}
    wait(browser, lambda: any("numbers of Y changed." in text for text in said(browser)[before:]))
    # the ancestry of a weight of head 2 reaches X and its own W only
    browser.execute_script("arguments[0].focus()", cell(browser, "weights-2", 1, 0, "weights-2"))
    script = """return Object.fromEntries([...document.querySelectorAll("table")].map((table) =>
      [table.dataset.matrix, table.querySelectorAll("td.ancestor").length]))"""
    marked = browser.execute_script(script)
    assert {name for name, count in marked.items() if count} == {
        *("input", "W_Q-2", "W_K-2", "query-2", "key-2", "scores-2", "scaled-2", "M", "masked-2", "weights-2")
    }
    assert marked["input"] == 8  # rows of both visible tokens
    line = browser.find_element(By.CSS_SELECTOR, "#weights-2 .arithmetic").text
    assert line.startswith("A₂[2,1] = e^")
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.ESCAPE)
    assert not browser.find_elements(By.CSS_SELECTOR, ".ancestor, .marked")


def test_page_is_accessible_and_fits_a_phone(browser, pages):
    resize(browser, 400, 850)
    browser.get(pages["part"][0])
    assert shown(browser)["sections"].keys() == {"input", "key-1", "mask", "masked-1", "weights-1"}
    assert not control(browser, "Mask").is_displayed()  # settings are folded
    browser.find_element(By.CSS_SELECTOR, ".settings summary").click()
    assert violations(browser) == []
    enter(browser, "Tokens", HOSTILE)
    labels = [label.get_attribute("title") for label in browser.find_elements(By.CSS_SELECTOR, "#input th[scope=row]")]
    assert labels == [
        "<img",
        "src=x",
        "onerror=alert(1)>",
        "]]></script>",
        "שלום",
        "🙂",
        '\\u202e"two',
        'words"',
        "__proto__",
    ]
    # a tap opens the editor, and a sideways drag of the chosen cell changes it
    touched = scroll_to(browser, cell(browser, "input", 1, 1, "input"))
    box = browser.execute_script(CORNER, touched)
    browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    touch(browser, *box, 0)
    wait(browser, lambda: browser.switch_to.active_element.tag_name == "input")
    before = float(browser.switch_to.active_element.get_attribute("value").replace("−", "-"))
    touch(browser, *box, 32)
    dragged = browser.switch_to.active_element.get_attribute("value")
    other = browser.execute_script(CORNER, cell(browser, "input", 2, 1, "input"))
    touch(browser, *other, 32)
    assert browser.switch_to.active_element.get_attribute("value") == dragged
    browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert float(touched.text.replace("−", "-")) == pytest.approx(before + 0.4)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 400
    emulate(browser, theme="dark")
    resize(browser, 1280)
    choose(browser, "Softmax over", "columns")
    enter(browser, "Tokens", "two words")
    assert violations(browser) == []


def test_page_works_in_a_notebook(browser, tmp_path):
    (tmp_path / "notebook.html").write_text(f"<!doctype html>{load('three-by-four').trace()._repr_html_()}")
    browser.get((tmp_path / "notebook.html").as_uri())
    browser.switch_to.frame(0)
    scroll_to(browser, cell(browser, "input", 0, 0, "input")).click()
    browser.switch_to.active_element.send_keys("2", Keys.ENTER)
    assert len(changes(browser)) == 1
    assert not browser.find_elements(By.CSS_SELECTOR, "[data-save=link]")
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.ARROW_RIGHT)
    assert browser.find_element(By.CSS_SELECTOR, "section.current").get_attribute("id") == "query-1"
    assert_matches_python(browser)
    browser.switch_to.default_content()


def test_large_layer_is_written_by_scripts_only(browser, tmp_path):
    torch.manual_seed(0)
    traced = trace(MultiHeadAttention(16, 8, bias=False).double(), torch.randn(12, 16).double())
    text = render(traced, "html")
    assert len(text.encode()) <= 400_000
    (tmp_path / "large.html").write_text(text)
    browser.get((tmp_path / "large.html").as_uri() + "#weights-8")
    assert len(browser.find_elements(By.CSS_SELECTOR, "main section")) == len(traced)
    assert browser.find_element(By.CSS_SELECTOR, "section.current").get_attribute("id") == "weights-8"
    assert_matches_python(browser)
