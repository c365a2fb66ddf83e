"""Tests of the HTML page in a real browser: layout, marked cells, navigation and themes."""

import base64
import math
import re

import pytest
import torch
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from clearhead import Causal, MultiHeadAttention, record, trace
from clearhead.explain import load, trace_head
from clearhead.explain.render import render
from support.browser import emulate, requested, resize
from support.recordings import decoder

pytestmark = pytest.mark.usefixtures("blank_page")

AWKWARD = ["</script>", "שלום", "🙂", "\n", "x" * 10_000, "日本語", "&amp;"]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    traces = {name: load(name).trace() for name in ("two-heads", "song-causal", "embeddings")}
    everything = MultiHeadAttention(8, 2, kv_input_dim=6, qk_norm=True, softcap=3.0, sinks=True, key_dim=4)
    traces["everything"] = trace(everything, torch.randn(3, 8), torch.randn(5, 6), mask=Causal())
    plain = MultiHeadAttention(8, 2)
    torch.nn.init.normal_(plain.query.bias)
    traces["biased"] = trace(plain, torch.randn(3, 8))
    traces["awkward"] = trace(MultiHeadAttention(4, 2), torch.randn(len(AWKWARD), 4), tokens=AWKWARD)
    traces["long"] = trace(MultiHeadAttention(4, 2, bias=False), torch.randn(25, 4))
    traces["head"] = trace_head(decoder([f"t{index}" for index in range(40)], layers=1, kv_heads=4), "decoder.0.1")
    traces["wide"] = trace_head(record("en-ja", "The cat ate the fish.", values=True), "cross.2.5")
    for name, traced in traces.items():
        (folder / f"{name}.html").write_text(render(traced, "html", title=f"{name} </title>"))
    return {name: (folder / f"{name}.html").as_uri() for name in traces}


def cell(browser, section, row, column):
    """Return a cell of a section's result; row and column are counted from 0."""
    path = f"#{section} table[data-marks=result] tbody tr:nth-child({row + 1}) td:nth-of-type({column + 1})"
    return browser.find_element(By.CSS_SELECTOR, path)


def point_at(browser, element):
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    ActionChains(browser).move_to_element(element).perform()


def marked(browser, section):
    """Return the marked cells of each table of a section, as (row, column) from 0."""
    index = "[cell.parentElement.rowIndex - 1, cell.cellIndex - 1]"
    script = f"[...table.querySelectorAll('td.marked')].map((cell) => {index})"
    return browser.execute_script(f"return [...document.querySelectorAll('#{section} table')].map((table) => {script})")


def current(browser):
    return browser.execute_script("return [...document.querySelectorAll('section.current')].map(({ id }) => id)")


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("name", ["two-heads", "song-causal", "everything", "awkward", "head", "wide"])
def test_page_makes_no_requests_and_fits_the_window(browser, pages, name, width):
    resize(browser, width)
    browser.get(pages[name])
    assert {url for url in requested(browser) if not url.startswith("data:")} == {pages[name]}
    assert browser.title == f"{name} </title>"
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.find_element(By.ID, "next").is_displayed()
    for section in browser.find_elements(By.TAG_NAME, "section"):
        assert section.find_element(By.CSS_SELECTOR, ".formula math").size["height"] > 10
        for table in section.find_elements(By.TAG_NAME, "table"):
            assert table.size["height"] > 20


def test_fractions_are_rendered_as_mathml(browser, pages):
    browser.get(pages["two-heads"])
    fraction, plain = (
        browser.find_element(By.CSS_SELECTOR, f"#{name}-1 .formula math") for name in ("scaled", "scores")
    )
    assert fraction.find_element(By.TAG_NAME, "mfrac").size["height"] > 1.4 * plain.size["height"]


@pytest.mark.parametrize(
    ("name", "section", "index", "expected"),
    [
        ("two-heads", "slice-2", (3, 1), [[[3, 3]]]),
        ("two-heads", "query-1", (3, 1), [[[3, 0], [3, 1]], [[0, 1], [1, 1]]]),
        ("two-heads", "scores-1", (3, 5), [[[3, 0], [3, 1]], [[0, 5], [1, 5]]]),
        ("two-heads", "scaled-2", (3, 5), [[[3, 5]]]),
        ("song-causal", "masked-1", (2, 1), [[[2, 1]], [[2, 1]]]),
        ("song-causal", "masked-1", (2, 4), [[], [[2, 4]]]),  # −∞ whatever the score is
        ("song-causal", "weights-1", (2, 1), [[[2, column] for column in range(6)]]),
        ("song-causal", "weights-1", (2, 4), [[[2, 4]]]),
        ("two-heads", "head_output-2", (3, 1), [[[3, c] for c in range(8)], [[r, 1] for r in range(8)]]),
        ("two-heads", "concat", (3, 3), [[], [[3, 1]]]),
        ("embeddings", "input", (3, 1), [[[3, 1]], [[3, 1]]]),
        ("two-heads", "output", (3, 2), [[[3, c] for c in range(4)], [[r, 2] for r in range(4)]]),
        ("biased", "query-2", (1, 3), [[[1, c] for c in range(8)], [[r, 3] for r in range(8)], [[0, 3]]]),
        ("everything", "query-1", (1, 3), [[[1, c] for c in range(8)], [[r, c] for r in range(8) for c in range(4)],
                                            [[0, c] for c in range(4)]]),
    ],
)  # fmt: skip
def test_pointing_at_a_cell_marks_its_operands(browser, pages, name, section, index, expected):
    browser.get(pages[name])
    point_at(browser, cell(browser, section, *index))
    assert marked(browser, section) == [*expected, [list(index)]]
    headers = browser.find_elements(By.CSS_SELECTOR, f"#{section} table[data-marks=result] th.marked")
    over, before = (header.get_property("cellIndex") for header in headers)
    assert (over - 1, before) == (index[1], 0)
    assert headers[1].find_element(By.XPATH, "..").get_property("rowIndex") - 1 == index[0]


@pytest.mark.parametrize(
    ("name", "section", "index"),
    [
        ("two-heads", "query-1", (3, 1)),
        ("two-heads", "scores-2", (7, 2)),
        ("two-heads", "scaled-1", (4, 4)),
        ("two-heads", "weights-1", (5, 0)),
        ("song-causal", "weights-1", (2, 1)),
        ("song-causal", "head_output-1", (4, 3)),
        ("biased", "value-2", (2, 0)),
        ("two-heads", "output", (0, 3)),
        ("embeddings", "input", (3, 1)),
    ],
)
def test_arithmetic_line_evaluates_to_the_cell(browser, pages, name, section, index):
    browser.get(pages[name])
    target = cell(browser, section, *index)
    point_at(browser, target)
    name, line = browser.find_element(By.CSS_SELECTOR, f"#{section} .arithmetic").text.split(" = ", 1)
    left, right = re.split(" ≈ | = ", line)
    assert name.endswith(f"[{index[0] + 1},{index[1] + 1}]")
    assert right == target.text
    python = left.replace("−", "-").replace("·", "*").replace("e^", "e**").replace("√", "root * ").replace("∞", "inf")
    python = python.replace("root * 2", "2 ** 0.5")
    assert eval(python, {"e": math.e, "inf": math.inf}) == pytest.approx(float(right.replace("−", "-")), abs=0.02)


def test_tap_marks_a_cell_and_escape_clears_it(browser, pages):
    resize(browser, 400)
    browser.get(pages["two-heads"])
    target = cell(browser, "scores-1", 2, 1)
    browser.execute_script("arguments[0].click()", target)
    assert marked(browser, "scores-1")[2] == [[2, 1]]
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.ESCAPE)
    assert marked(browser, "scores-1") == [[], [], []]


def test_keys_step_through_the_sections(browser, pages):
    browser.get(pages["two-heads"])
    assert current(browser) == ["input"]
    assert browser.execute_script("return scrollY") == 0
    for key, expected in (
        (Keys.ARROW_RIGHT, "slice-1"),
        ("n", "query-1"),
        (Keys.ARROW_LEFT, "slice-1"),
        ("p", "input"),
        (Keys.ARROW_LEFT, "input"),
    ):
        browser.switch_to.active_element.send_keys(key)
        assert current(browser) == [expected]
        assert browser.current_url.endswith(f"#{expected}")
        assert on_screen(browser, browser.find_element(By.CSS_SELECTOR, f"#{expected} h2"))
    assert browser.find_element(By.ID, "steps").get_attribute("value") == "input"


def on_screen(browser, element):
    """Return whether an element is below the top bar and inside the window."""
    top = browser.execute_script("return arguments[0].getBoundingClientRect().top", element)
    return browser.find_element(By.TAG_NAME, "nav").size["height"] - 1 <= top < 900


def test_scrolling_updates_the_current_step(browser, pages):
    browser.get(pages["two-heads"])
    browser.execute_script("setTimeout(() => document.getElementById('weights-1').scrollIntoView(), 600)")
    WebDriverWait(browser, 10).until(lambda _: current(browser) == ["weights-1"])
    assert browser.find_element(By.ID, "steps").get_attribute("value") == "weights-1"
    browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert current(browser) == ["head_output-1"]


@pytest.mark.parametrize("width", [1280, 400])
def test_arithmetic_line_is_visible_and_does_not_shift_the_layout(browser, pages, width):
    resize(browser, width)
    browser.get(pages["two-heads"])
    target = cell(browser, "weights-1", 7, 1)
    browser.execute_script("arguments[0].scrollIntoView({block: 'end'})", target)
    where = "return arguments[0].getBoundingClientRect().top"
    # sections that come into view are laid out in the next frames
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    before = browser.execute_script(where, target)
    ActionChains(browser).move_to_element(target).perform()
    assert browser.execute_script(where, target) == before
    assert on_screen(browser, browser.find_element(By.CSS_SELECTOR, "#weights-1 .arithmetic"))


def test_arithmetic_line_omits_masked_keys_and_keeps_the_selected_term(browser, pages):
    browser.get(pages["song-causal"])
    point_at(browser, cell(browser, "weights-1", 1, 4))
    assert browser.find_element(By.CSS_SELECTOR, "#weights-1 .arithmetic").text == (
        "A[2,5] = 0, because the mask hides this key"
    )
    point_at(browser, cell(browser, "weights-1", 1, 1))
    line = browser.find_element(By.CSS_SELECTOR, "#weights-1 .arithmetic").text
    assert line == "A[2,2] = e^(−0.355) / (e^0.679 + e^(−0.355)) ≈ 0.262"
    point_at(browser, cell(browser, "masked-1", 1, 4))
    assert browser.find_element(By.CSS_SELECTOR, "#masked-1 .arithmetic").text == "(S + M)[2,5] = 3.873 + (−∞) = −∞"
    browser.get(pages["long"])
    point_at(browser, cell(browser, "weights-1", 0, 15))
    line = browser.find_element(By.CSS_SELECTOR, "#weights-1 .arithmetic").text
    term, total = line.split(" / ")
    assert term in total
    assert total.count("…") == 2


def test_shortened_tables_keep_the_arithmetic_of_their_cells(browser, pages):
    browser.get(pages["wide"])
    point_at(browser, cell(browser, "scores-1", 2, 2))
    line = browser.find_element(By.CSS_SELECTOR, "#scores-1 .arithmetic").text
    assert line.count(" · ") == 4
    assert line.endswith(" + … ≈ 49.570 (the sum of all 32 products)")
    browser.get(pages["head"])
    shown = browser.execute_script("return document.querySelector('#weights-1 table[data-rows]').dataset.rows")
    rows = [int(entry) for entry in shown.split(",")]
    assert -1 in rows
    assert rows[-1] == 39
    target = cell(browser, "head_output-1", len(rows) - 1, 0)  # token 40
    point_at(browser, target)
    weights, values, result = marked(browser, "head_output-1")
    assert {row for row, _ in weights} == {len(rows) - 1}
    assert {column for _, column in values} == {0}
    assert len(weights) == len(values)
    assert result == [[len(rows) - 1, 0]]
    line = browser.find_element(By.CSS_SELECTOR, "#head_output-1 .arithmetic").text
    assert line.endswith(f"≈ {target.text} (the sum of all 40 products)")
    gap = browser.find_element(By.CSS_SELECTOR, "#weights-1 table[data-marks=result] td.gap")
    browser.execute_script("arguments[0].click()", gap)
    assert marked(browser, "weights-1")[-1] == []


def test_sums_of_rows_are_shown_and_cannot_be_selected(browser, pages):
    browser.get(pages["song-causal"])
    sums = browser.find_elements(By.CSS_SELECTOR, "#weights-1 td.sum")
    assert [element.text for element in sums] == ["1"] * 6
    browser.execute_script("arguments[0].click()", sums[0])
    assert marked(browser, "weights-1") == [[], []]
    browser.execute_script("arguments[0].focus()", cell(browser, "weights-1", 0, 0))
    for _ in range(8):
        browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert browser.switch_to.active_element == cell(browser, "weights-1", 0, 5)


def test_masked_cells_are_hatched(browser, pages):
    browser.get(pages["song-causal"])
    image = "return getComputedStyle(arguments[0]).backgroundImage"
    assert "gradient" in browser.execute_script(image, cell(browser, "weights-1", 0, 5))
    assert "gradient" not in browser.execute_script(image, cell(browser, "weights-1", 3, 2))  # 0.000, not masked


def test_buttons_menu_and_url_select_the_step(browser, pages):
    browser.get(pages["two-heads"] + "#weights-2")
    assert current(browser) == ["weights-2"]
    browser.find_element(By.ID, "next").click()
    assert current(browser) == ["head_output-2"]
    browser.find_element(By.ID, "previous").click()
    browser.find_element(By.CSS_SELECTOR, "#steps option[value=concat]").click()
    assert current(browser) == ["concat"]
    browser.refresh()
    assert current(browser) == ["concat"]
    browser.get(pages["two-heads"] + "#nonsense")
    assert current(browser) == ["input"]


def test_single_step_mode_shows_one_step_and_prints_all(browser, pages):
    browser.get(pages["two-heads"])
    body = browser.find_element(By.TAG_NAME, "body")
    body.send_keys("o", Keys.ARROW_RIGHT)
    shown = [s.get_attribute("id") for s in browser.find_elements(By.TAG_NAME, "section") if s.is_displayed()]
    assert shown == ["slice-1"]
    for key, expected in (
        (Keys.PAGE_DOWN, "query-1"),
        (Keys.END, "output"),
        (Keys.PAGE_UP, "concat"),
        (Keys.HOME, "input"),
    ):
        browser.switch_to.active_element.send_keys(key)
        assert current(browser) == [expected]
    emulate(browser, media="print")
    assert all(section.is_displayed() for section in browser.find_elements(By.TAG_NAME, "section"))
    assert not browser.find_element(By.TAG_NAME, "nav").is_displayed()
    emulate(browser)
    browser.find_element(By.ID, "single").click()
    assert all(section.is_displayed() for section in browser.find_elements(By.TAG_NAME, "section"))


def test_arrow_keys_move_between_cells(browser, pages):
    browser.get(pages["two-heads"])
    first = cell(browser, "scores-1", 0, 0)
    assert first.get_attribute("tabindex") == "0"
    browser.execute_script("arguments[0].focus()", first)
    for key in (Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ARROW_UP, Keys.ARROW_LEFT, Keys.ARROW_LEFT):
        browser.switch_to.active_element.send_keys(key)
    assert browser.switch_to.active_element == cell(browser, "scores-1", 1, 0)
    assert marked(browser, "scores-1")[2] == [[1, 0]]
    assert browser.find_element(By.CSS_SELECTOR, "#scores-1 .arithmetic").get_attribute("aria-live") == "polite"


CONTRAST = """
const channels = (text) => {
  const values = text.match(/[\\d.]+/g).map(Number);
  return text.startsWith("rgb") ? values.slice(0, 3).map((part) => part / 255) : values.slice(0, 3);
};
const light = (text) => {
  const [r, g, b] = channels(text).map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const paper = getComputedStyle(document.body).backgroundColor;
const contrast = (element, background) => {
  const pair = [light(getComputedStyle(element).color), light(background)].sort((a, b) => a - b);
  return (pair[1] + 0.05) / (pair[0] + 0.05);
};
const all = (path) => [...document.querySelectorAll(path)];
const cells = all("tbody td").map((td) => contrast(td, getComputedStyle(td).backgroundColor));
const texts = all("h1, h2, p, th, .formula, .shape, .number").map((element) => contrast(element, paper));
return [Math.min(...cells), Math.min(...texts), light(paper), cells.length];
"""


@pytest.mark.parametrize(("theme", "other"), [("light", "dark"), ("dark", "light")])
def test_contrast_is_sufficient_in_both_themes(browser, pages, theme, other):
    emulate(browser, theme=theme)
    browser.get(pages["two-heads"])
    for shown in (theme, other):
        cells, texts, paper, count = browser.execute_script(CONTRAST)
        assert count > 500
        assert min(cells, texts) >= 4.5
        assert (paper > 0.5) == (shown == "light")
        browser.find_element(By.ID, "theme").click()


def test_print_is_light_and_fits_the_page(browser, pages):
    browser.get(pages["long"])
    browser.find_element(By.TAG_NAME, "body").send_keys("t")  # dark
    emulate(browser, media="print")
    resize(browser, 700)
    assert browser.execute_script(CONTRAST)[2] > 0.9
    width = "return document.documentElement.scrollWidth"
    assert browser.execute_script(width) > 700
    browser.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert browser.execute_script(width) <= 700
    pages_printed = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert base64.b64decode(pages_printed["data"]).startswith(b"%PDF")


def test_special_tokens_are_shown_escaped(browser, pages):
    browser.get(pages["awkward"])
    labels = browser.find_elements(By.CSS_SELECTOR, "#input th[scope=row]")
    assert [label.get_attribute("title") for label in labels] == [
        "\\n" if token == "\n" else token for token in AWKWARD
    ]
    assert max(label.size["width"] for label in labels) < 200
