"""Tests of the film: the page that plays it, the course's film, and the numbers of page 10."""

import json
import re

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from clearhead.explain.course._markdown import parse_page
from clearhead.explain.course.catalog import FOLDER
from clearhead.explain.course.film_page import write_film_page
from clearhead.translation.heads.film import DEFAULT_FILM_TEXT, check_film
from support.browser import requested
from support.viewer_page import violations

HEAD, LAYER_AND_HEAD = "cross 0.2", "0.2"


@pytest.fixture(scope="module")
def film():
    return json.loads((FOLDER / "data" / "film.json").read_text(encoding="utf-8"))


def tense_cells(film):
    """Return the row of weights of the token with the tense in each frame, by step, and the column of its link."""
    [[row, column]] = [[row, column] for relation, row, column in film["links"] if relation == "tense"]
    assert film["stacks"]["cross"]["rows"][row] == "mashita"
    assert film["stacks"]["cross"]["columns"][column] == "did"
    return {frame["step"]: [value / 1000 for value in frame["maps"][HEAD][row]] for frame in film["frames"]}, column


def test_film_of_the_course_is_small_and_complete(film):
    check_film(film)
    assert (FOLDER / "data" / "film.json").stat().st_size <= 60_000
    assert film["text"] == DEFAULT_FILM_TEXT
    assert film["held_out"]
    assert film["frames"][0]["step"] == 0
    assert film["frames"][-1]["step"] == film["steps"]
    for frame in film["frames"]:
        for weights in frame["maps"].values():
            assert all(sum(row) == pytest.approx(1000, abs=6) for row in weights)


def test_answers_and_numbers_of_the_page_are_those_of_the_film(film):
    text = (FOLDER / "pages" / "10-film.md").read_text(encoding="utf-8")
    page = parse_page("10-film", text)
    rows, column = tense_cells(film)
    largest, first_half, goal = page.questions
    columns = film["stacks"]["cross"]["columns"]
    assert largest.choices[largest.right - 1] == columns[rows[0].index(max(rows[0]))]
    assert first_half.answer == min(step for step, row in rows.items() if row[column] > 0.5)
    assert "At step 120, *did* has 0.31" in first_half.why
    assert [round(rows[step][column], 2) for step in (120, 150, 180)] == [0.31, 0.76, 0.98]
    assert goal.goal.bounds["at_least"] > rows[150][column]
    assert max(row[column] for row in rows.values()) > goal.goal.bounds["at_least"]
    assert [round(max(rows[step]), 2) for step in (0, 30)] == [0.48, 0.30]
    assert all(row[column] > 0.9 for step, row in rows.items() if step >= 180)
    tense = {frame["step"]: frame["accuracy"]["tense"] for frame in film["frames"]}
    last = tense[film["steps"]]
    assert max(last, key=lambda head: last[head][0]) == LAYER_AND_HEAD
    shares = [round(tense[step][LAYER_AND_HEAD][1], 2) for step in (0, 120, 210)]
    assert shares == [0.11, 0.13, 0.74]
    assert last[LAYER_AND_HEAD][1] > shares[-1]
    for relation, head in re.findall(r"^- \*(.+?)\*(?: and \*.+?\*)?: head \*(.+?)\*", text, re.MULTILINE):
        accuracies = film["frames"][-1]["accuracy"][relation]
        assert f"{film['relations'][relation]} {max(accuracies, key=lambda name: accuracies[name][0])}" == head
    accuracies = {frame["step"]: frame["accuracy"] for frame in film["frames"]}
    assert [f"{accuracies[step]['noun']['2.1'][1]:.2f}" for step in (150, film["steps"])] == ["0.40", "1.00"]
    assert accuracies[film["steps"]]["verb → object"]["1.1"][1] == pytest.approx(2 / 3, abs=0.06)
    assert re.search(r"clearhead train --film --seed (\d+)", text)[1] == str(film["seed"])


def test_hostile_tokens_are_escaped(film, tmp_path):
    hostile = "</script><img src=x onerror=alert(1)>"
    stacks = {**film["stacks"], "cross": {**film["stacks"]["cross"], "columns": [hostile] * 9}}
    write_film_page({**film, "text": hostile, "stacks": stacks}, tmp_path / "film.html")
    text = (tmp_path / "film.html").read_text(encoding="utf-8")
    assert "<img" not in text
    assert text.count("</script>") == text.count("<script")


def test_film_without_frames_is_refused(film, tmp_path):
    with pytest.raises(ValueError, match="the film has no frames"):
        write_film_page({**film, "frames": []}, tmp_path / "film.html")


def text_of(page, selector):
    return page.find(selector).text


def test_page_plays_the_film(page, browser, film, tmp_path):
    maps = {"encoder 0.2": [[111] * 9] * 9}  # not the head that film.json calls 0.2, which is in another stack
    frames = [{**frame, "maps": {**frame["maps"], **maps}} for frame in film["frames"]]
    write_film_page({**film, "frames": frames}, tmp_path / "film.html")
    address = (tmp_path / "film.html").as_uri()
    requested(browser)
    browser.get(address)
    page.until(lambda: page.all(".film-strip button"))
    assert {url for url in requested(browser) if not url.startswith("data:")} == {address}
    rows, column = tense_cells(film)
    steps = list(rows)
    assert [each.text for each in page.all(".film-strip button span:first-of-type")] == list(map(str, steps))
    first = "At step 0, “mashita” looks most at “man” (0.48); “did” gets 0.04."
    assert text_of(page, ".film-say").startswith(first)
    slider = page.find("input[type=range]")
    for _ in range(5):
        slider.send_keys(Keys.ARROW_RIGHT)
    assert text_of(page, "td.changed") == f"{rows[steps[5]][column]:.2f}".removeprefix("0")
    assert "At step 150, “mashita” looks most at “did” (0.76)." in text_of(page, ".film-say")
    page.find(".film-strip button[aria-current]").send_keys(Keys.ARROW_RIGHT)
    assert text_of(page, ".film-step") == f"step {steps[6]} of {film['steps']}"
    browser.switch_to.active_element.send_keys(Keys.END)
    assert browser.switch_to.active_element.text.split()[0] == str(steps[-1])
    page.find(".film-play").send_keys(Keys.ENTER)  # from the beginning, because the last frame is shown
    page.until(lambda: int(slider.get_property("value")) in range(2, len(steps) - 1))
    assert page.find(".film-say").get_attribute("aria-live") == "off"
    page.find(".film-play").send_keys(Keys.ENTER)
    assert text_of(page, ".film-play") == "Play"
    assert page.find(".film-say").get_attribute("aria-live") == "polite"
    relation, head, _ = map(Select, page.all("select"))
    assert f"{film['frames'][0]['accuracy']['tense'][LAYER_AND_HEAD][1]:.2f}" in text_of(page, ".film-strip button")
    assert "Token written" in text_of(page, ".controls")
    head.select_by_visible_text("encoder 0.2")
    assert "Token written" not in text_of(page, ".controls")
    assert {each.text for each in page.all(".film-accuracy")} == {""}
    assert "held-out" not in text_of(page, ".film-say")
    relation.select_by_visible_text("noun")
    nouns = film["frames"][-1]["accuracy"]["noun"]
    assert page.all("select")[1].get_property("value") == f"cross {max(nouns, key=lambda head: nouns[head][0])}"
    assert text_of(page, "tr.watched th") == "otoko"
    assert violations(browser) == []
