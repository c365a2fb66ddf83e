"""Tests of the HTML sheet in a real browser: typing, moving, saving, restoring, and the self-check."""

import random

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from clearhead.explain import BUILT_IN, load, parse
from clearhead.explain.exercises import exercise, mark, render_sheet, to_toml
from support.browser import complaints, emulate, requested, resize
from support.exercise_answers import answers_of, answers_with_swapped_heads

ALL_STEPS = "query,key,value,scores,scaled,weights,head_output,concat,output"


@pytest.fixture(autouse=True)
def fresh(browser, tmp_path):
    resize(browser, 1280)
    emulate(browser)
    browser.get("about:blank")
    settings = {"behavior": "allow", "downloadPath": str(tmp_path)}
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", settings)
    complaints(browser)
    requested(browser)
    yield
    assert complaints(browser) == []


def open_sheet(browser, folder, sheet, *, self_check=True):
    path = folder / "sheet.html"
    path.write_text(render_sheet(sheet, "html", self_check=self_check), encoding="utf-8")
    browser.get(path.as_uri())
    return path


def inputs_of(browser, section):
    return browser.find_elements(By.CSS_SELECTOR, f"#{section} table.answers input")


def section_of(key):
    return key[0] if key[1] is None else f"{key[0]}-{key[1] + 1}"


def fill(browser, answers):
    """Set all answers at once, as if they were typed."""
    for key, rows in answers.items():
        script = """
            const inputs = document.querySelectorAll(`#${arguments[0]} table.answers input`);
            arguments[1].forEach((text, index) => {
              inputs[index].value = text;
              inputs[index].dispatchEvent(new Event("input"));
              inputs[index].dispatchEvent(new Event("change"));
            });"""
        browser.execute_script(script, section_of(key), [cell for row in rows for cell in row])


def page_verdicts(browser, section):
    cells = f"[...document.querySelectorAll('#{section} table.answers tbody td')]"
    return browser.execute_script(f"return {cells}.map((cell) => cell.dataset.verdict)")


def saved(browser, folder, name):
    browser.find_element(By.ID, "save").click()
    path = folder / name
    WebDriverWait(browser, 20).until(lambda _: path.exists() and path.stat().st_size)
    return path


def assert_same_marks(browser, marks):
    browser.find_element(By.ID, "check").click()
    for step in marks.steps:
        section = section_of((step.step, step.head))
        assert page_verdicts(browser, section) == [cell.verdict for cell in step.cells], section
    total = f"{marks.points:g} of {marks.possible:g} points."
    assert browser.find_element(By.ID, "status").text.startswith(total)


def test_typed_answers_are_saved_and_marked_as_on_the_page(browser, tmp_path):
    sheet = exercise(parse("x = [[1, 2], [0, 1], [1, 1]]"), "query,scores,scaled,weights,head_output", seed=3)
    open_sheet(browser, tmp_path, sheet)
    student = browser.find_element(By.ID, "student")
    student.send_keys('Ada "Zoë" <b>')
    # one wrong cell of Q, which all later steps carry on
    answers = answers_of(sheet, {("query", 0): {(1, 0): 0.9}})
    for key, rows in answers.items():
        inputs = inputs_of(browser, section_of(key))
        inputs[0].click()
        for text in (cell for row in rows for cell in row):
            browser.switch_to.active_element.send_keys(text, Keys.ENTER)
        assert [entry.get_property("value") for entry in inputs] == [cell for row in rows for cell in row]
    path = saved(browser, tmp_path, "Ada-Zoë-b.toml")
    marks = mark(path)
    assert marks.student == 'Ada "Zoë" <b>'
    assert sum(step.count("wrong") for step in marks.steps) == 1
    assert sum(step.count("carried") for step in marks.steps) > 5
    assert_same_marks(browser, marks)
    expected = to_toml(sheet, student='Ada "Zoë" <b>', answers=answers)
    assert path.read_text(encoding="utf-8") == expected
    wrong = f"{marks.steps[0].points:g} of {marks.steps[0].possible:g} points"
    assert browser.find_element(By.CSS_SELECTOR, "#query-1 .points").text == wrong


@pytest.mark.parametrize("seed", range(8))
def test_page_and_command_agree_on_random_answers(browser, tmp_path, seed):
    generator = random.Random(seed)
    name = tuple(BUILT_IN)[seed % len(BUILT_IN)]
    names = [step.name for step in load(name).trace() if step.name in (*ALL_STEPS.split(","), "masked")]
    steps = [step for step in dict.fromkeys(names) if generator.random() < 0.7] or ["weights"]
    sheet = exercise(name, steps, seed=seed, points={steps[0]: 7})
    errors = {}
    for key in generator.choices(sheet.blanks, k=3):
        rows, columns = sheet.steps[key].shape
        errors[key] = {(generator.randrange(rows), generator.randrange(columns)): generator.choice([-2.0, 0.5, 0.02])}
    answers = answers_of(sheet, errors, rounded=seed % 2 == 0, ignore_shown=seed % 3 == 0)
    for rows in answers.values():
        for text in ("", "x", ".5", "0,3", "−0.2", "1e9"):
            row = generator.choice(rows)
            row[generator.randrange(len(row))] = text
    open_sheet(browser, tmp_path, sheet)
    fill(browser, answers)
    marks = mark(saved(browser, tmp_path, "answers.toml"))
    browser.find_element(By.ID, "check").click()
    for step in marks.steps:
        section = section_of((step.step, step.head))
        assert page_verdicts(browser, section) == [cell.verdict for cell in step.cells], section


def test_page_and_command_agree_on_heads_in_another_order(browser, tmp_path):
    sheet = exercise("causal-decoder", "query,weights,output", seed=7)
    open_sheet(browser, tmp_path, sheet)
    fill(browser, answers_with_swapped_heads(sheet))
    marks = mark(saved(browser, tmp_path, "answers.toml"))
    assert marks.steps[-1].count("wrong") == 15
    assert_same_marks(browser, marks)


def test_answers_survive_a_reload_until_they_are_cleared(browser, tmp_path):
    sheet = exercise("song", "weights", seed=3)
    path = open_sheet(browser, tmp_path, sheet, self_check=False)
    assert not browser.find_elements(By.ID, "check")
    browser.find_element(By.ID, "student").send_keys("Ada")
    inputs_of(browser, "weights-1")[7].send_keys("0.25")
    browser.get("about:blank")
    browser.get(path.as_uri())
    assert inputs_of(browser, "weights-1")[7].get_property("value") == "0.25"
    assert browser.find_element(By.ID, "student").get_property("value") == "Ada"
    browser.find_element(By.ID, "clear").click()
    browser.switch_to.alert.accept()
    browser.refresh()
    assert inputs_of(browser, "weights-1")[7].get_property("value") == ""


def test_keys_move_between_cells(browser, tmp_path):
    open_sheet(browser, tmp_path, exercise("song", "weights,output", seed=3))
    inputs = inputs_of(browser, "weights-1")
    inputs[0].click()

    def press(*keys):
        browser.switch_to.active_element.send_keys(*keys)
        active = browser.switch_to.active_element
        return next((index for index, entry in enumerate(inputs) if entry == active), None)

    assert press(Keys.ENTER) == 1
    assert press(Keys.ARROW_DOWN) == 7
    assert press(Keys.ARROW_LEFT) == 6
    assert press(Keys.ARROW_LEFT) == 6
    assert press(Keys.ARROW_UP, "0.5", Keys.ARROW_LEFT) == 0  # the caret moves inside the number
    assert press(Keys.END, Keys.ARROW_RIGHT) == 1
    assert press(Keys.TAB) == 2
    inputs[35].click()
    press(Keys.ENTER)
    assert browser.switch_to.active_element == inputs_of(browser, "output")[0]


def test_texts_that_are_not_numbers_are_marked_while_typing(browser, tmp_path):
    open_sheet(browser, tmp_path, exercise("song", "weights", seed=3), self_check=False)
    first, second, *_ = inputs_of(browser, "weights-1")
    first.send_keys("one", Keys.TAB)
    second.send_keys("0,25", Keys.TAB)
    assert first.get_attribute("aria-invalid") == "true"
    assert second.get_attribute("aria-invalid") == "false"


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["two-heads", "song-causal"])
def test_sheet_makes_no_requests_and_fits_the_window(browser, tmp_path, name, width):
    resize(browser, width)
    path = open_sheet(browser, tmp_path, exercise(name, "weights,output", seed=3))
    assert requested(browser) - {"data:,"} == {path.as_uri()}
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.find_element(By.ID, "save").is_displayed()
    emulate(browser, media="print")
    assert not browser.find_element(By.ID, "save").is_displayed()
    assert inputs_of(browser, "weights-1")[0].is_displayed()
