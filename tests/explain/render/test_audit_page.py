"""Tests of the page of an audit in a real browser: layout, marks, keyboard and themes."""

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from clearhead import check
from clearhead.explain import parse
from clearhead.explain.render import render_audit
from support.audited_texts import HOSTILE, life
from support.browser import emulate, requested, resize

pytestmark = pytest.mark.usefixtures("blank_page")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audits")
    tokens = str([token.replace("\n", "") for token in HOSTILE]).replace("is", "was")
    audits = {
        "life": life(),
        "hostile": life(**{'["Life", "is", "short"]': tokens}),
        "song-causal": check("song-causal"),
        "empty": check(parse("x = [[1.0]]")),
    }
    for name, audit in audits.items():
        (folder / f"{name}.html").write_text(render_audit(audit, "html"))
    (folder / "notebook.html").write_text(f"<!doctype html>{audits['life']._repr_html_()}")
    return {path.stem: path.as_uri() for path in folder.iterdir()}


def claimed_cell(browser, claim, row, column):
    """Return a cell of a claimed matrix; row and column are counted from 0."""
    path = f"#claim-{claim} table[data-marks=result] tbody tr:nth-child({row + 1}) td:nth-of-type({column + 1})"
    return browser.find_element(By.CSS_SELECTOR, path)


def note(browser, claim):
    return browser.find_element(By.CSS_SELECTOR, f"#claim-{claim} .arithmetic").text


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["life", "hostile", "song-causal", "empty"])
def test_page_makes_no_requests_and_fits_the_window(browser, pages, name, width):
    resize(browser, width)
    browser.get(pages[name])
    assert requested(browser) - {"data:,"} == {pages[name]}
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.find_element(By.ID, "next").is_displayed()


def test_matrices_are_side_by_side_and_stacked_on_a_phone(browser, pages):
    browser.get(pages["life"])
    claimed, computed = browser.find_elements(By.CSS_SELECTOR, "#claim-3 figure")
    causes = browser.find_element(By.CSS_SELECTOR, "#claim-3 aside")
    assert claimed.rect["y"] == computed.rect["y"]
    assert computed.rect["x"] + computed.rect["width"] < causes.rect["x"]
    resize(browser, 390)
    assert computed.rect["y"] >= claimed.rect["y"] + claimed.rect["height"]
    assert computed.rect["x"] == claimed.rect["x"]


def test_wrong_and_carried_cells_differ_by_more_than_color(browser, pages):
    browser.get(pages["life"])
    wrong, carried = claimed_cell(browser, 3, 0, 0), claimed_cell(browser, 4, 0, 0)
    assert wrong.text.split() == ["✗", "wrong", "0.54"]  # "wrong" is only for screen readers
    assert carried.text.split() == ["→", "carried", "0.54"]
    styles = [
        cell.find_element(By.CLASS_NAME, "value").value_of_css_property("text-decoration-style")
        for cell in (wrong, carried)
    ]
    assert styles == ["wavy", "dotted"]
    assert "gradient" in claimed_cell(browser, 4, 0, 1).value_of_css_property("background-image")


def test_pointing_at_a_cell_shows_the_comparison(browser, pages):
    browser.get(pages["life"])
    cell = claimed_cell(browser, 3, 0, 1)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", cell)
    ActionChains(browser).move_to_element(cell).perform()
    assert note(browser, 3) == "printed 0.17, computed 0.234, difference −0.064"
    marked = browser.find_elements(By.CSS_SELECTOR, "#claim-3 td.marked")
    assert [element.text.split()[-1] for element in marked] == ["0.17", "0.234"]


def test_cells_are_reached_with_the_keyboard(browser, pages):
    browser.get(pages["life"])
    browser.execute_script("arguments[0].focus()", claimed_cell(browser, 4, 0, 0))
    assert note(browser, 4).endswith("carried from S")
    browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert note(browser, 4) == "printed −∞, computed −∞, agrees"
    browser.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    assert note(browser, 4).startswith("printed 0.02, computed 0.034")


@pytest.mark.parametrize("name", ["life", "notebook"])
def test_links_of_the_summary_lead_to_the_claim(browser, pages, name):
    browser.get(pages[name])
    if name == "notebook":
        browser.switch_to.frame(browser.find_element(By.TAG_NAME, "iframe"))
    browser.find_element(By.CSS_SELECTOR, "#summary ol a").click()
    shown = "return document.querySelector('section.current')?.id"
    WebDriverWait(browser, 5).until(lambda driver: driver.execute_script(shown) == "claim-3")
    browser.find_element(By.ID, "next").click()
    assert browser.execute_script(shown) == "claim-4"
    browser.switch_to.default_content()


def test_themes_have_readable_marks(browser, pages):
    for theme in ("light", "dark"):
        emulate(browser, theme=theme)
        browser.get(pages["life"])
        ratio = browser.execute_script(CONTRAST, claimed_cell(browser, 3, 0, 0))
        assert ratio >= 4.5, theme
        assert browser.execute_script(CONTRAST, claimed_cell(browser, 4, 0, 0)) >= 4.5, theme


def test_print_has_no_navigation(browser, pages):
    emulate(browser, media="print")
    browser.get(pages["life"])
    assert not browser.find_element(By.TAG_NAME, "nav").is_displayed()
    assert browser.find_element(By.CSS_SELECTOR, "#claim-3 aside").is_displayed()


CONTRAST = """
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const luminance = (color) => {
  canvas.fillStyle = color;
  canvas.fillRect(0, 0, 1, 1);
  const linear = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
};
const style = getComputedStyle(arguments[0]);
const [high, low] = [luminance(style.color), luminance(style.backgroundColor)].sort((a, b) => b - a);
return (high + 0.05) / (low + 0.05);
"""
